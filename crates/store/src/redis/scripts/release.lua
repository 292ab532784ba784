-- Gives a lease up, and says so to those who wait.
-- KEYS: lease. ARGV: token, channel, message.
if is_held(KEYS[1], ARGV[1]) then
  redis.call('DEL', KEYS[1])
  redis.call('PUBLISH', ARGV[2], ARGV[3])
end
return 1
