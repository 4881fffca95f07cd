#!lua flags=allow-oom
-- Judges a token by the cached records, as session.Verify does with no slack, and
-- counts the use. It needs no memory to speak of, so a full server still answers.
--
-- KEYS    1 the user's record   2 the session's record (same slot)
-- ARGV    1 Unix ms to count as now, 0 = this server's TIME
--         2 F: how long a user's record is fresh, ms
--         3 for how much longer it is of use where nothing better is to be had, ms
--         4 SHA-256 of the token, hex   5 tenant   6 user the session must be of, or ""
--         7 least assurance level   8 most ms since the authentication, 0 = any   9 1 = count as a use
--         10 the caller's Unix ms: callers wrote the session's instants, so that theirs is the clock for them
--         11 the tenant's epoch
-- returns {found, this server's ms, ver, reason, user's record, session's record, durable}
--         found    "hit": the verdict counts, "stale": it is only better than none, "miss": there is none
--         ver      no older user record may be believed, 0 = none known
--         reason   "" = active
--         durable  1: this use is to be recorded in the durable store
local now = tonumber(ARGV[1])
if now == 0 then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
local F, grace, at = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[10])

local e = redis.call('GET', KEYS[1])
local ver, chk, hold, sv, pv, disabled, tenantLen, ids
if e then
  ver, chk, hold, sv, pv, disabled, tenantLen, ids =
    string.match(e, '^1 (%d+) (%d+) (%d+) (%d+) (%d+) ([01]) (%d+):(.*)$')
end
if not ver then return {'miss', now, 0} end
ver, chk, hold, tenantLen = tonumber(ver), tonumber(chk), tonumber(hold), tonumber(tenantLen)
-- A clock that stepped back further than clocks may differ leaves instants that mean nothing.
if chk > now + F / 2 then chk = 0 end
if now >= math.max(chk + F + grace, hold) then return {'miss', now, 0} end
if now >= chk + F + grace then return {'miss', now, ver} end

local s = redis.call('GET', KEYS[2])
local sver, seen, durable, rest, active, se, abs, idle, aal, authAt, hash, prev, graceUntil, prevAAL, prevAuthAt, te
if s then
  sver, seen, durable, rest = string.match(s, '^2 (%d+) (%d+) (%d+) (.*)$')
end
if not sver or tonumber(sver) ~= ver then return {'miss', now, ver} end
active, se, abs, idle, aal, authAt, hash, prev, graceUntil, prevAAL, prevAuthAt, te =
  string.match(rest, '^([01]) (%d+) (%d+) (%d+) (%d+) (%d+) (%x+) (%x*) (%d+) (%d+) (%d+) (%d+) ')
if not active then return {'miss', now, ver} end
seen, durable, abs, idle = tonumber(seen), tonumber(durable), tonumber(abs), tonumber(idle)

local level, authenticated, old = tonumber(aal), tonumber(authAt), false
local holds = ARGV[4] == hash
if not holds and ARGV[4] == prev then
  holds, old = true, at >= tonumber(graceUntil)
  level, authenticated = tonumber(prevAAL), tonumber(prevAuthAt)
end

local reason, final = '', true
if not holds or (ARGV[6] ~= '' and ARGV[6] ~= string.sub(ids, tenantLen + 1)) or ARGV[5] ~= string.sub(ids, 1, tenantLen) then
  reason, final = 'unknown', false
elseif old then
  reason, final = 'rotated', false
elseif active == '0' then
  reason = 'revoked'
elseif tonumber(se) ~= tonumber(sv) or tonumber(te) < tonumber(ARGV[11]) then
  reason = 'epoch'
elseif disabled == '1' then
  reason = 'disabled'
elseif at >= abs then
  reason = 'expired'
elseif at >= seen + idle then
  reason, final = 'idle_expired', false
elseif level < tonumber(ARGV[7]) then
  reason = 'aal'
elseif tonumber(ARGV[8]) > 0 and at - authenticated > tonumber(ARGV[8]) then
  reason = 'auth_age'
end
-- Only the durable store knows of a newer token or a later use.
if not final then return {'miss', now, ver} end
if now >= chk + F then return {'stale', now, ver, reason, e, s, 0} end

local due = 0
if reason == '' and ARGV[9] == '1' then
  local D, Q = math.min(300000, math.floor(idle / 5)), math.min(30000, math.floor(idle / 10))
  if at - durable >= D then
    durable, due = at, 1
  end
  if due == 1 or at - seen >= Q then
    seen = math.max(seen, at)
    s = string.format('2 %.0f %.0f %.0f %s', ver, seen, durable, rest)
    redis.call('SET', KEYS[2], s, 'PX', string.format('%.0f', math.min(F + grace, math.min(abs, seen + idle + D) - at)))
  end
end
return {'hit', now, ver, reason, e, s, due}
