#!lua
-- Moves the lock's end, if the holder has it.
--
-- KEYS  the lock
-- ARGV  how what is kept begins where the holder has it; for how many ms, 0 = as when it was taken
-- Returns for how many ms, or 0 where the holder does not have it.
local kept = redis.call('GET', KEYS[1]) or ''
if string.sub(kept, 1, #ARGV[1]) ~= ARGV[1] then return 0 end
local ms = tonumber(ARGV[2])
if ms == 0 then ms = tonumber(string.match(kept, '^%d+', #ARGV[1] + 1)) end
redis.call('PEXPIRE', KEYS[1], ms)
return ms
