-- Asks Highwater whether a request may pass: http-request lua.highwater ADDRESS PROFILE MILLISECONDS allow|deny
--
-- A plain socket and not core.httpclient(): that one tries a refused connection again for seconds, whatever its
-- timeout says.

local PASSED_ON = {
  ["content-type"] = true, ["retry-after"] = true, ["ratelimit"] = true, ["ratelimit-policy"] = true,
  ["x-ratelimit-limit"] = true, ["x-ratelimit-remaining"] = true, ["x-ratelimit-reset"] = true,
  ["cache-control"] = true,
}

-- Status, headers and body; nothing when there is no whole answer in time.
local function ask(txn, address, profile, ms)
  local host, port = address:match("^(.*):(%d+)$")
  local socket = core.tcp()
  -- HAProxy knows whole seconds and fractions of them.
  socket:settimeout(ms / 1000)
  if not socket:connect(host, tonumber(port)) then return nil end
  local request = {
    "GET /v1/gateway/" .. profile .. " HTTP/1.1",
    "Host: highwater",
    "Connection: close",
    "X-Original-Method: " .. txn.f:method(),
    "X-Original-URI: " .. txn.sf:path() .. (txn.sf:query() ~= "" and "?" .. txn.sf:query() or ""),
    "X-Forwarded-For: " .. txn.sf:src(),
  }
  -- Headers that the profile reads are sent on here, each as often as the client sent it:
  for _, name in ipairs({ "authorization", "x-api-key" }) do
    local values = txn.http:req_get_headers()[name]
    local at = 0
    while values and values[at] do
      request[#request + 1] = name .. ": " .. values[at]
      at = at + 1
    end
  end
  socket:send(table.concat(request, "\r\n") .. "\r\n\r\n")
  local line = socket:receive("*l")
  local status = line and tonumber(line:match("^HTTP/1%.1 (%d%d%d)"))
  if not status then socket:close() return nil end
  local headers = {}
  while true do
    line = socket:receive("*l")
    if not line then socket:close() return nil end
    line = line:gsub("\r$", "")
    if line == "" then break end
    local name, value = line:match("^([^:]+):%s*(.*)$")
    if name then headers[name:lower()] = value end
  end
  local length = tonumber(headers["content-length"] or "0")
  local body = length > 0 and socket:receive(length) or ""
  socket:close()
  return status, headers, body
end

core.register_action("highwater", { "http-req" }, function(txn, address, profile, ms, without)
  local status, headers, body = ask(txn, address, profile, tonumber(ms))
  if status == 200 then
    if headers["ratelimit"] then txn:set_var("txn.hw_ratelimit", headers["ratelimit"]) end
    if headers["ratelimit-policy"] then txn:set_var("txn.hw_policy", headers["ratelimit-policy"]) end
    return
  end
  -- Only a failure of Highwater's own follows the choice; a refusal never does, whatever status the profile gives it.
  local is_refusal = headers and headers["x-quota-decision"] == "deny"
  if (not status or status >= 500) and not is_refusal and without == "allow" then return end
  local reply = txn:reply({ status = status or 503 })
  for name, value in pairs(headers or {}) do
    if PASSED_ON[name] then reply:add_header(name, value) end
  end
  reply:set_body(body or "")
  txn:done(reply)
end, 4)
