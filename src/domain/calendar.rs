//! Calendar windows. (placeholder during build-up)
use serde::Deserialize;
use serde::Serialize;
use utoipa::ToSchema;
/// A calendar period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Period { Hour, Day, Week, Month, Quarter, Year }
/// Where the windows lie.
#[derive(Clone, Debug, PartialEq)]
pub struct Calendar;
