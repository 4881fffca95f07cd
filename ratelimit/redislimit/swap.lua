#!lua
-- Keeps new states in place of those that a decision was made from, if all of them
-- are still there.
--
-- KEYS  any
-- ARGV  for each key: what it must hold, "" = nothing; what to keep, "" = what it has; for
--       how many ms, 0 = drop it
-- Returns 1, or 0 where one has changed since, and then nothing is kept.
for i, key in ipairs(KEYS) do
  if (redis.call('GET', key) or '') ~= ARGV[3 * i - 2] then return 0 end
end
for i, key in ipairs(KEYS) do
  if ARGV[3 * i] == '0' then
    redis.call('DEL', key)
  elseif ARGV[3 * i - 1] ~= '' then
    redis.call('SET', key, ARGV[3 * i - 1], 'PX', ARGV[3 * i])
  end
end
return 1
