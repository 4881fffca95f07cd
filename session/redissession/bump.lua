#!lua flags=allow-oom
-- Raises the version below which no user record is believed, and takes freshness
-- from an older record. It grants none: the next verify reads.
--
-- KEYS    1 the user's record
-- ARGV    1 Unix ms to count as now, 0 = this server's TIME
--         2 F, ms   3 use beyond F, ms   4 ver
-- returns 1
local now = tonumber(ARGV[1])
if now == 0 then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
local F, grace, ver = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

-- The floor outlives every read that began before the change: those older than
-- F/2 are refused. A newer record stays what it is and must last as long.
local chk, hold, rest = 0, now + F, '0 0 0 0:'
local e = redis.call('GET', KEYS[1])
if e then
  local oldVer, oldChk, oldHold, oldRest = string.match(e, '^1 (%d+) (%d+) (%d+) (.*)$')
  if oldVer and tonumber(oldVer) >= ver then
    ver, chk, hold, rest = tonumber(oldVer), tonumber(oldChk), math.max(hold, tonumber(oldHold)), oldRest
  end
end
redis.call('SET', KEYS[1], string.format('1 %.0f %.0f %.0f %s', ver, chk, hold, rest),
  'PX', string.format('%.0f', math.max(chk + F + grace, hold) - now))
return 1
