#!lua
-- Takes a cost from all buckets or from none, or puts units back, in one step. It
-- does what package ratelimit's Take and Give do, as long as a bucket was counted
-- under the same rule, no clock was set and nothing that is pending was left alone; else
-- it changes nothing and says so.
--
-- KEYS  the buckets, and behind them the record of the request where there is one
-- ARGV  1 take | hold (take, pending) | peek | give | settled, undone (end what is pending)
--       2 the instant in µs, 0 = now
--       then for each bucket, numbers as decimal integers below 2^53:
--       Count:Per, and the capacity and the cost in units, or of debt and leaky in the µs
--       in which they come back. Where that is not all that there is for any bucket, nor behind
--       them, also debt | fixed | counter | log | slots | leaky, and what debt and leaky have
--       besides in 1/Count µs as rest:rest, "" where neither has
--       then all three or none:
--       the instant of the charge that goes back or ends, 0 = unknown
--       the slot id, may be empty
--       how long a record is kept, in µs
-- Returns {status, instant, record, state before of each bucket}, nil for what is not there.
--       status 1 = done, 0 = refused or only looked at, -1 = too unusual,
--       2 = done by an earlier request, or nothing to end
--
-- What most calls need makes no function and few strings: each that a call makes is a
-- part of what it costs. There + 0 makes a number of digits, without a call of tonumber, and
-- a debt is kept in the form that these are computed in: '3', seen and us as doubles and
-- rest in 32 bits, little-endian, and Count:Per.
local ARGV, KEYS, call = ARGV, KEYS, redis.call
local op, now, extra = ARGV[1], tonumber(ARGV[2]), 0
local n, width = #KEYS, 3 -- of a bucket's arguments
if #ARGV ~= 3 * n + 2 then n, width = math.floor((#ARGV - 2) / 5), 5 end
local charged, slot, memory = 0, '', nil
if #ARGV > width * n + 2 then
  charged, slot, memory = tonumber(ARGV[5 * n + 3]), ARGV[5 * n + 4], tonumber(ARGV[5 * n + 5])
end
local ending = op == 'settled' or op == 'undone'
local giving = op == 'give' or ending

if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
else
  -- The instant of a test stands still while this server's clock runs.
  extra = 3600000
end

-- What is needed for all but plain debts is made only for who needs it. It sees nothing
-- but its arguments, for what it sees costs too.
local function rare(op, now, charged, slot, giving, ending)
  -- sound: whether every number that was read could have been kept, and every one that is
  -- to be kept is a whole number that Lua has exactly.
  local own = { sound = true }
  local age = 5000000 -- µs, in which what is pending is kept apart
  local function num(text, least, most)
    local x = tonumber(text)
    if #text > 16 or x < (least or 0) or x >= 2 ^ 53 or x > (most or x) then own.sound = false end
    return x
  end
  -- tostring would lose digits.
  local function str(x)
    if not (x >= 0 and x < 2 ^ 53 and math.floor(x) == x) then own.sound = false end
    return string.format('%.0f', x)
  end
  own.num, own.str = num, str

  -- Both are of µs and 1/count µs.
  local function add(us, rest, more, morerest, count)
    us, rest = us + more, rest + morerest
    if rest >= count then return us + 1, rest - count end
    return us, rest
  end
  local function sub(us, rest, less, lessrest, count)
    us, rest = us - less, rest - lessrest
    if rest < 0 then return us - 1, rest + count end
    return us, rest
  end

  -- Of a debt with something pending, nil for what is none: what is pending in the age of
  -- seen is [1], and in the one before [2].
  function own.read(state)
    local held, heldrest = {}, {}
    local seen, us, rest, counted
    seen, us, rest, counted, held[1], heldrest[1], held[2], heldrest[2] =
      string.match(state, '^2:(%d+):(%d+):(%d+):(%d+:%d+):(%d+):(%d+):(%d+):(%d+)$')
    if not seen or #seen > 16 or #us > 16 or #rest > 16 then return nil end
    local count = tonumber(string.match(counted, '%d+'))
    for i = 1, 2 do
      held[i], heldrest[i] = num(held[i], 0, 36600 * 86400000000), num(heldrest[i], 0, count - 1)
    end
    held.rest = heldrest
    return tonumber(seen), tonumber(us), tonumber(rest), counted, held
  end
  function own.ended(seen) return now > seen and math.floor(now / age) ~= math.floor(seen / age) end
  function own.owed(us, rest, held, count)
    for i = 1, 2 do us, rest = add(us, rest, held[i], held.rest[i], count) end
    return us, rest
  end
  function own.hold(held, cost, costrest, count)
    held = held or { 0, 0, rest = { 0, 0 } }
    held[1], held.rest[1] = add(held[1], held.rest[1], cost, costrest, count)
    return held
  end
  -- Returns nil where the state is too unusual; false where nothing changes; else the debt.
  function own.back(seen, us, rest, held, cost, costrest, count)
    local ended = ending and held and math.floor(seen / age) - math.floor(charged / age) + 1
    if ended and (ended == 1 or ended == 2) and held[ended] + held.rest[ended] > 0 then
      local left, leftrest = sub(held[ended], held.rest[ended], cost, costrest, count)
      if left < 0 then return nil end -- some of it was refunded
      held[ended], held.rest[ended] = left, leftrest
      if op == 'settled' then return add(us, rest, cost, costrest, count) end
      return us, rest
    elseif op == 'settled' then
      return false
    end
    if charged > 0 and seen > charged then
      if seen - charged > cost then cost, costrest = 0, 0 else cost = cost - (seen - charged) end
    end
    local before, beforerest = us, rest
    us, rest = sub(us, rest, cost, costrest, count)
    if us < 0 then
      if held and charged == 0 then return nil end -- what it refunds may be pending
      us, rest = 0, 0
    end
    if us == before and rest == beforerest then return false end
    return us, rest
  end
  -- The state with what is pending, and until when it is kept; nothing where that is nothing.
  function own.pack(seen, us, rest, held, text, count)
    if held[1] + held.rest[1] + held[2] + held.rest[2] == 0 then return nil end
    local packed = '2:' .. str(seen) .. ':' .. str(us) .. ':' .. str(rest) .. ':' .. text
    for i = 1, 2 do packed = packed .. ':' .. str(held[i]) .. ':' .. str(held.rest[i]) end
    local all, allrest = own.owed(us, rest, held, count)
    return packed, seen + all + (allrest > 0 and 1 or 0) + 2 * age
  end

  -- Each of these returns: nil where the state is too unusual; false where the bucket
  -- refuses; else true, and the state to keep and until when, or nothing for no change.

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
      if at > now and id == slot and op ~= 'settled' then
        freed = true -- or a new one takes its place
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

  own.kinds = { fixed = window, counter = window, log = log, slots = slots }
  return own
end
local others

-- Made in one piece, so that it need not grow for up to four buckets.
local answer = { 0, now, false, nil, nil, nil, nil }
local recordkey = KEYS[n + 1]
local record = recordkey and call('GET', recordkey)
answer[3] = record or false
for i = 1, n do answer[3 + i] = call('GET', KEYS[i]) end
if op == 'peek' then return answer end

local first -- the instant of the charge of the record
if recordkey and ending and not record then
  answer[1] = 2
  return answer
end
if record then
  others = rare(op, now, charged, slot, giving, ending)
  local form, at, flows, id = string.match(record, '^([12]):(%d+):(%d+)(.*)$')
  answer[1] = -1
  if not at or not (id == '' or string.match(id, '^:[^:]+$')) then return answer end
  first = others.num(at)
  local repeated = others.num(flows) and now < first + memory
  if ending then
    repeated = not (repeated and form == '2' and first == charged)
  elseif repeated and form == '2' and op == 'take' then
    return answer
  end
  -- A slot that is released or expired makes the request a new one.
  for i = 1, giving and 0 or n do
    if repeated and ARGV[5 * i + 1] == 'slots' then
      repeated = false
      for expires, holder in string.gmatch(answer[3 + i] or '', ':(%d+):%d+:([^:]+)') do
        if ':' .. holder == id and others.num(expires) > now then repeated = true end
      end
    end
  end
  if repeated then
    answer[1] = 2
    return answer
  end
end

-- Of each bucket the state to keep, and behind it for how many ms.
local keeps = { nil, nil, nil, nil, nil, nil, nil, nil }
local passes, turn = true, now
answer[1] = -1 -- until it is decided
for i = 1, n do
  local a, state, full = width * (i - 1) + 3, answer[3 + i], nil
  local text, cap, cost, kind, rests = ARGV[a], ARGV[a + 1] + 0, ARGV[a + 2] + 0, 'debt', ''
  if width == 5 then kind, rests = ARGV[a + 3], ARGV[a + 4] end
  if kind == 'debt' or kind == 'leaky' then
    local count, caprest, costrest = 1, 0, 0
    if rests ~= '' then
      count, caprest, costrest = tonumber(string.match(text, '%d+')), string.match(rests, '^(%d+):(%d+)$')
      caprest, costrest = tonumber(caprest), tonumber(costrest)
    end
    local seen, us, rest, held = now, 0, 0, nil
    if state then
      local form, counted
      if #state > 21 then form, seen, us, rest = struct.unpack('<BddI4', state) end
      if form == 51 then -- '3'
        counted = string.sub(state, 22)
      else
        others = others or rare(op, now, charged, slot, giving, ending)
        seen, us, rest, counted, held = others.read(state)
      end
      if counted ~= text then return answer end
      if held or rest > 0 then
        count = string.match(text, '%d+') + 0
        if rest >= count then return answer end
      end
      if not (seen >= 0 and seen < 2 ^ 53 and seen % 1 == 0 and us >= 0 and us <= 36600 * 86400000000 and us % 1 == 0) then
        return answer
      end
      if held then
        local all, allrest = others.owed(us, rest, held, count)
        -- A lower capacity, or an age that has ended.
        if all > cap or (all == cap and allrest > caprest) or others.ended(seen) then return answer end
      elseif us > cap or (us == cap and rest > caprest) then
        us, rest = cap, caprest
      end
      if now >= seen then
        if now - seen > us then us, rest = 0, 0 else us = us - (now - seen) end
        seen = now
      elseif seen - now > cap + (caprest > 0 and 1 or 0) then
        return answer
      end
    end
    local all, allrest, changes = us, rest, true
    if held then all, allrest = others.owed(us, rest, held, count) end
    if kind == 'leaky' then turn = math.max(turn, seen + all + (allrest > 0 and 1 or 0)) end
    if giving then
      others = others or rare(op, now, charged, slot, giving, ending)
      local left, leftrest = others.back(seen, us, rest, held, cost, costrest, count)
      if left == nil then return answer end
      changes = left
      if changes then us, rest = left, leftrest end
    else
      all, allrest = all + cost, allrest + costrest
      if allrest >= count then all, allrest = all + 1, allrest - count end
      if all > cap or (all == cap and allrest > caprest) then
        passes, changes = false, false
      elseif op == 'hold' then
        others = others or rare(op, now, charged, slot, giving, ending)
        held = others.hold(held, cost, costrest, count)
      else
        us, rest = us + cost, rest + costrest
        if rest >= count then us, rest = us + 1, rest - count end
      end
    end
    if changes then
      if held then keeps[2 * i - 1], full = others.pack(seen, us, rest, held, text, count) end
      if not full then
        if not (us >= 0 and us < 2 ^ 53 and us % 1 == 0 and rest >= 0 and rest < 2 ^ 32 and rest % 1 == 0) then return answer end
        keeps[2 * i - 1], full = struct.pack('<BddI4c0', 51, seen, us, rest, text), seen + us + (rest > 0 and 1 or 0)
      end
    end
  else
    others = others or rare(op, now, charged, slot, giving, ending)
    local count, per = string.match(text, '^(%d+):(%d+)$')
    if op == 'settled' then cost = 0 end -- they have it as they keep it
    local passed
    passed, keeps[2 * i - 1], full = others.kinds[kind](state, { kind = kind, count = tonumber(count), per = tonumber(per), cost = cost })
    if passed == nil then return answer end
    passes = passes and passed
  end
  if full then
    full = full - now + 999
    full = (full - full % 1000) / 1000
    if not (full < 2 ^ 53) then return answer end
    keeps[2 * i] = (full < 1 and 1 or full) + extra
  end
end
if not passes then
  answer[1] = 0
  return answer
end

local turned, left = nil, 0
if recordkey and op == 'settled' then
  turned, left = '1' .. string.sub(record, 2), first + memory - now
elseif recordkey and op ~= 'undone' then
  turned, left = string.format('%s:%.0f:%.0f', op == 'hold' and '2' or '1', now, giving and now or turn), memory
  if not giving and slot ~= '' then turned = turned .. ':' .. slot end
end
left = math.max(1, math.ceil(left / 1000)) + extra
if not (now >= 0 and now < 2 ^ 53 and now % 1 == 0 and turn < 2 ^ 53 and turn % 1 == 0 and left < 2 ^ 53) or (others and not others.sound) then
  return answer
end

-- From here on nothing can fail.
answer[1] = 1
for i = 1, n do
  if keeps[2 * i - 1] then call('SET', KEYS[i], keeps[2 * i - 1], 'PX', keeps[2 * i]) end
end
if turned then
  call('SET', recordkey, turned, 'PX', left)
elseif recordkey then
  call('DEL', recordkey)
end
return answer
