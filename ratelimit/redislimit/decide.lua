#!lua
-- Takes a cost from all buckets or from none, or puts units back, in one step. It
-- does what package ratelimit's Take and Give do, as long as a bucket was counted
-- under the same rule and no clock was set; else it changes nothing and says so.
--
-- KEYS  the buckets, and behind them the record of the request where there is one
-- ARGV  1 take | peek | give | void (give, and forget the record)
--       2 the instant in µs, 0 = now
--       3 the instant of the charge that goes back, 0 = unknown
--       4 the slot id, may be empty
--       5 how long a record is kept, in µs
--       then for each bucket, as decimal integers below 2^53:
--       debt | fixed | counter | log | slots | leaky, Count, Per,
--       the time in which the capacity comes back, in µs and 1/Count µs, that of the cost, and the cost
-- Returns {status, instant, record, state before of each bucket}, "" for what is not there.
--       status 1 = done, 0 = refused or only looked at, 2 = done by an earlier request, -1 = too unusual
local op, charged, slot, memory = ARGV[1], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local now, extra = tonumber(ARGV[2]), 0
local n = (#ARGV - 5) / 8
local giving = op == 'give' or op == 'void'

if now == 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
else
  -- The instant of a test stands still while this server's clock runs.
  extra = 3600000
end

-- Whether every number that was read could have been kept, and every one that is to
-- be kept is a whole number that Lua has exactly.
local sound = true
local function num(text, least, most)
  local x = tonumber(text)
  if #text > 16 or x < (least or 0) or x >= 2 ^ 53 or x > (most or x) then sound = false end
  return x
end
-- tostring would lose digits.
local function str(x)
  if not (x >= 0 and x < 2 ^ 53 and math.floor(x) == x) then sound = false end
  return string.format('%.0f', x)
end

local function ttl(full) return str(math.max(1, math.ceil((full - now) / 1000)) + extra) end

-- a × b / c rounded up, for a and c below 2^45 and b below 2^30. No product reaches
-- 2^53, and no quotient is rounded: r is always an exact remainder.
local function muldivceil(a, b, c)
  local q, r = 0, 0
  for shift = 28, 0, -7 do
    local t = r * 128 + math.fmod(math.floor(b / 2 ^ shift), 128) * a
    r = math.fmod(t, c)
    q = q * 128 + (t - r) / c
  end
  if r > 0 then q = q + 1 end
  return q
end

-- Each of these returns: nil where the state is too unusual; false where the bucket
-- refuses; else true, and the state to keep and until when, or nothing for no change.

local function debt(state, rule)
  local seen, us, rest = now, 0, 0
  if state then
    local count, per
    seen, us, rest, count, per = string.match(state, '^1:(%d+):(%d+):(%d+):(%d+):(%d+)$')
    if not seen or tonumber(count) ~= rule.count or tonumber(per) ~= rule.per then return nil end
    seen, us, rest = num(seen), num(us, 0, 36600 * 86400000000), num(rest, 0, rule.count - 1)
    if us > rule.us or (us == rule.us and rest > rule.rest) then us, rest = rule.us, rule.rest end
    if now >= seen then
      if now - seen > us then us, rest = 0, 0 else us = us - (now - seen) end
      seen = now
    elseif seen - now > rule.us + (rule.rest > 0 and 1 or 0) then
      return nil
    end
  end
  local before, beforerest = us, rest
  rule.turn = seen + us + (rest > 0 and 1 or 0)
  if giving then
    local amount, amountrest = rule.costus, rule.costrest
    if charged > 0 and seen > charged then
      if seen - charged > amount then amount, amountrest = 0, 0 else amount = amount - (seen - charged) end
    end
    us, rest = us - amount, rest - amountrest
    if rest < 0 then us, rest = us - 1, rest + rule.count end
    if us < 0 then us, rest = 0, 0 end
    if us == before and rest == beforerest then return true end
  else
    us, rest = us + rule.costus, rest + rule.costrest
    if rest >= rule.count then us, rest = us + 1, rest - rule.count end
    if us > rule.us or (us == rule.us and rest > rule.rest) then return false end
  end
  return true, '1:' .. str(seen) .. ':' .. str(us) .. ':' .. str(rest) .. ':' .. str(rule.count) .. ':' .. str(rule.per),
    seen + us + (rest > 0 and 1 or 0)
end

local function window(state, rule)
  local seen, cur, old, per, cost = now, 0, 0, rule.per, rule.cost
  local function start(at) return at - math.fmod(at, per) end
  if state then
    local stored
    seen, cur, old, stored = string.match(state, '^1:(%d+):(%d+):(%d+):(%d+)$')
    if not seen or tonumber(stored) ~= per then return nil end
    seen, cur, old = num(seen), num(cur, 0, 1000000000), num(old, 0, 1000000000)
    if now < seen - 2 * per then return nil end
    if now > seen then
      local passed = start(now) - start(seen)
      if passed == per then cur, old = 0, cur elseif passed > per then cur, old = 0, 0 end
      seen = now
    end
  end
  local sliding = rule.kind == 'counter'
  if giving then
    local begin = start(seen)
    local fromcur, fromold = math.min(cost, cur), 0
    if charged > 0 and charged < begin then fromcur = 0 end
    if sliding and (charged == 0 or (charged < begin and charged >= begin - per)) then fromold = math.min(cost - fromcur, old) end
    if fromcur + fromold == 0 then return true end
    cur, old = cur - fromcur, old - fromold
  else
    local covered = 0
    if sliding then covered = muldivceil(per - (seen - start(seen)), old, per) end
    if cur + covered + cost > rule.count then return false end
    cur = cur + cost
  end
  local full = seen
  if cur > 0 or (old > 0 and sliding) then full = start(seen) + per end
  if cur > 0 and sliding then full = full + per end
  return true, '1:' .. str(seen) .. ':' .. str(cur) .. ':' .. str(old) .. ':' .. str(per), full
end

local function log(state, rule)
  local times, costs, last, sum, cost = {}, {}, 0, 0, rule.cost
  if state then
    local read = 1
    for gap, units in string.gmatch(state, ':(%d+):(%d+)') do
      last, read = last + num(gap), read + #gap + #units + 2
      times[#times + 1], costs[#costs + 1] = last, num(units, 1, 1000)
    end
    if read ~= #state or string.sub(state, 1, 1) ~= '1' or last > now + rule.per then return nil end
  end
  local at, first = math.max(now, last), 1
  while times[first] and times[first] <= at - rule.per do first = first + 1 end
  if giving then
    local left = cost
    for i = #times, first, -1 do
      if left > 0 and (charged == 0 or times[i] == charged) then
        local back = math.min(left, costs[i])
        costs[i], left = costs[i] - back, left - back
      end
    end
    if left == cost then return true end
  else
    for i = first, #times do sum = sum + costs[i] end
    if sum + cost > rule.count then return false end
    if first <= #times and times[#times] == at then
      costs[#times] = costs[#times] + cost
    else
      times[#times + 1], costs[#costs + 1] = at, cost
    end
  end
  local packed, full = { '1' }, now
  last = 0
  for i = first, #times do
    if costs[i] > 0 then
      packed[#packed + 1] = ':' .. str(times[i] - last) .. ':' .. str(costs[i])
      last, full = times[i], times[i] + rule.per
    end
  end
  return true, table.concat(packed), full
end

local function slots(state, rule)
  local packed, full, held, freed, cost, read = { '1' }, now, 0, false, rule.cost, 1
  for expires, units, id in string.gmatch(state or '', ':(%d+):(%d+):([^:]+)') do
    read = read + #expires + #units + #id + 3
    local at, some = num(expires), num(units, 1, 1000)
    if at > now + rule.per then return nil end
    if at > now and giving and id == slot then
      freed = true
    elseif at > now then
      packed[#packed + 1] = ':' .. str(at) .. ':' .. str(some) .. ':' .. id
      held, full = held + some, math.max(full, at)
    end
  end
  if state and (read ~= #state or string.sub(state, 1, 1) ~= '1') then return nil end
  if giving then
    if not freed then return true end
  else
    if held + cost > rule.count then return false end
    packed[#packed + 1] = ':' .. str(now + rule.per) .. ':' .. str(cost) .. ':' .. slot
    full = math.max(full, now + rule.per)
  end
  return true, table.concat(packed), full
end

local decide = { debt = debt, leaky = debt, fixed = window, counter = window, log = log, slots = slots }

local recordkey = KEYS[n + 1]
local record = recordkey and redis.call('GET', recordkey)
local answer = { 0, str(now), record or '' }
local states = {}
for i = 1, n do
  states[i] = redis.call('GET', KEYS[i])
  answer[3 + i] = states[i] or ''
end
if op == 'peek' then return answer end

if record and op ~= 'void' then
  local at, flows, id = string.match(record, '^1:(%d+):(%d+)(.*)$')
  answer[1] = -1
  if not at or not (id == '' or string.match(id, '^:[^:]+$')) then return answer end
  local repeated = num(flows) and now < num(at) + memory
  -- A slot that is released or expired makes the request a new one.
  for i = 1, giving and 0 or n do
    if repeated and ARGV[6 + 8 * (i - 1)] == 'slots' then
      repeated = false
      for expires, holder in string.gmatch(states[i] or '', ':(%d+):%d+:([^:]+)') do
        if ':' .. holder == id and num(expires) > now then repeated = true end
      end
    end
  end
  if repeated then
    answer[1] = 2
    return answer
  end
end

local keeps, fulls, turn = {}, {}, now
answer[1] = 1
for i = 1, n do
  local a = 5 + 8 * (i - 1)
  local rule = {
    kind = ARGV[a + 1], count = tonumber(ARGV[a + 2]), per = tonumber(ARGV[a + 3]),
    us = tonumber(ARGV[a + 4]), rest = tonumber(ARGV[a + 5]),
    costus = tonumber(ARGV[a + 6]), costrest = tonumber(ARGV[a + 7]), cost = tonumber(ARGV[a + 8]),
  }
  local passes
  passes, keeps[i], fulls[i] = decide[rule.kind](states[i], rule)
  if passes == nil then
    answer[1] = -1
    return answer
  end
  if not passes then answer[1] = 0 end
  if rule.kind == 'leaky' then turn = math.max(turn, rule.turn) end
end
if answer[1] == 0 then return answer end

local ttls, turned = {}, nil
for i = 1, n do
  if keeps[i] then ttls[i] = ttl(fulls[i]) end
end
if recordkey and op ~= 'void' then
  turned = '1:' .. str(now) .. ':' .. str(giving and now or turn)
  if not giving and slot ~= '' then turned = turned .. ':' .. slot end
  ttls[n + 1] = ttl(now + memory)
end
if not sound then
  answer[1] = -1
  return answer
end

-- From here on nothing can fail.
for i = 1, n do
  if keeps[i] then redis.call('SET', KEYS[i], keeps[i], 'PX', ttls[i]) end
end
if turned then
  redis.call('SET', recordkey, turned, 'PX', ttls[n + 1])
elseif recordkey then
  redis.call('DEL', recordkey)
end
return answer
