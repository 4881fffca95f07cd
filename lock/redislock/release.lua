#!lua
-- Ends the lock, if the holder has it.
--
-- KEYS  the lock
-- ARGV  how what is kept begins where the holder has it
-- Returns 0 where nobody has it now, else for how many ms somebody else has it, at least 1.
local kept = redis.call('GET', KEYS[1])
if not kept then return 0 end
if string.sub(kept, 1, #ARGV[1]) ~= ARGV[1] then return math.max(1, redis.call('PTTL', KEYS[1])) end
redis.call('DEL', KEYS[1])
return 0
