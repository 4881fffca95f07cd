#!lua
-- Ties the id of a request to what it came with first. It does what package ratelimit's
-- Bind does.
--
-- KEYS  the id's
-- ARGV  1 a hash of what it comes with now
--       2 the instant in µs, 0 = now
--       3 how long it is known, in µs
-- Returns 1 where it is that request, 0 where it is another, -1 for a value of another form.
local now, extra = tonumber(ARGV[2]), 0
if now == 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
else
  -- The instant of a test stands still while this server's clock runs.
  extra = 3600000
end
local bound = redis.call('GET', KEYS[1])
if bound then
  local at, content = string.match(bound, '^1:(%d+):([^:]+)$')
  if not at or #at > 16 then return -1 end
  if now < tonumber(at) + tonumber(ARGV[3]) then return content == ARGV[1] and 1 or 0 end
end
redis.call('SET', KEYS[1], string.format('1:%.0f:%s', now, ARGV[1]), 'PX', string.format('%.0f', tonumber(ARGV[3]) / 1000 + extra))
return 1
