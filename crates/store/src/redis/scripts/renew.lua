-- Prolongs leases that are still held.
-- KEYS: leases. ARGV: life in ms, the token of each.
for i = 1, #KEYS do
  if is_held(KEYS[i], ARGV[i + 1]) then redis.call('PEXPIRE', KEYS[i], ARGV[1]) end
end
return 1
