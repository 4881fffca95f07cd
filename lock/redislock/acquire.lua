#!lua
-- Takes the lock if nobody holds it.
--
-- KEYS  the lock
-- ARGV  what to keep; for how many ms
-- Returns 0 where it was taken, else for how many ms somebody holds it, at least 1.
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
return math.max(1, redis.call('PTTL', KEYS[1]))
