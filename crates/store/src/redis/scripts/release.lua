-- Gives a lease up.
-- KEYS: lease, waited. ARGV: token, channel, message.
if is_held(KEYS[1], ARGV[1]) then give_up(KEYS[1], KEYS[2], ARGV[2], ARGV[3]) end
return 1
