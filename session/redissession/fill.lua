#!lua
-- Keeps what was read of a user and a session. It never makes what was read look
-- newer than it is, and never puts an older record in place of a newer one.
--
-- KEYS    1 the user's record   2 the session's record (same slot)
-- ARGV    1 Unix ms to count as now, 0 = this server's TIME
--         2 F, ms   3 use beyond F, ms   4 t0: this server's ms before the read began
--         5 ver of the user's record   6 the rest of it
--         7 the session's rest, "" = none   8 its seen, ms   9 its absolute end, ms
--         10 its idle time, ms   11 D, ms   12 the caller's Unix ms, before the read: its clock is that of 8 and 9
-- returns {kept, ms}  kept 0: the read is too old, read again
local now = tonumber(ARGV[1])
if now == 0 then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
local F, grace, chk, ver = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
if math.abs(now - chk) > F / 2 then return {0, now} end

local hold = 0
local e = redis.call('GET', KEYS[1])
if e then
  local oldVer, oldChk, oldHold = string.match(e, '^1 (%d+) (%d+) (%d+) ')
  if oldVer then
    oldVer, oldChk, oldHold = tonumber(oldVer), tonumber(oldChk), tonumber(oldHold)
    if oldChk > now + F / 2 then oldChk = 0 end
    if now < math.max(oldChk + F + grace, oldHold) then
      if oldVer > ver then return {1, now} end
      if oldVer == ver then chk = math.max(chk, oldChk) end
      hold = oldHold
    end
  end
end
redis.call('SET', KEYS[1], string.format('1 %.0f %.0f %.0f %s', ver, chk, hold, ARGV[6]),
  'PX', string.format('%.0f', math.max(chk + F + grace, hold) - now))

if ARGV[7] == '' then return {1, now} end
local seen, abs, idle, D, at = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local durable = seen
local s = redis.call('GET', KEYS[2])
if s then
  local _, cachedSeen, cachedDurable = string.match(s, '^2 (%d+) (%d+) (%d+) ')
  -- A later use is known here than in the durable store; one of the future, by more than
  -- the read may have taken, is no use.
  if cachedSeen and tonumber(cachedSeen) <= at + F / 2 then seen = math.max(seen, tonumber(cachedSeen)) end
  if cachedDurable and tonumber(cachedDurable) <= at + F / 2 then durable = math.max(durable, tonumber(cachedDurable)) end
end
-- No longer than it is of use beside the user's record: a fill, and each use, grants it anew.
local ttl = math.min(F + grace, math.min(abs, seen + idle + D) - at)
if ttl > 0 then
  redis.call('SET', KEYS[2], string.format('2 %.0f %.0f %.0f %s', ver, seen, durable, ARGV[7]), 'PX', string.format('%.0f', ttl))
end
return {1, now}
