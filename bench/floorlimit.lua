-- The least that a decision on Redis can be: GCRA over all keys, or nothing.
-- KEYS the limits; ARGV 1 µs between two requests, 2 µs that may be ahead
-- Returns {1 = allowed | 0, µs until it would be}
local gap, ahead = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local wait, next = 0, {}
for i, key in ipairs(KEYS) do
  next[i] = math.max(now, tonumber(redis.call('GET', key) or 0)) + gap
  wait = math.max(wait, next[i] - now - ahead)
end
if wait > 0 then return {0, wait} end
for i, key in ipairs(KEYS) do
  redis.call('SET', key, string.format('%.0f', next[i]), 'PX', math.ceil((next[i] - now) / 1000))
end
return {1, 0}
