//! Calendar windows. (replaced by the merge)
use serde::Deserialize;
use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
/// A calendar period.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Period {
    Hour,
    Day,
    Week,
    Month,
    Quarter,
    Year,
}
/// Where the windows lie.
#[derive(Clone, Debug, PartialEq)]
pub struct Calendar;
impl Calendar {
    /// window
    pub fn window(&self, now: Timestamp) -> Window {
        Window::aligned(now, Span::from_seconds(86_400))
    }
}
