-- Looks an entry up, and where there is none takes the lease on the attempt.
-- KEYS: entry, lease, epoch. ARGV: now, schema, token (empty: only looks), lease in ms.
local e = redis.pcall('HMGET', KEYS[1], 'x', 'c', 's', 'm', 'b', 'n', 'q')
local epoch = redis.call('GET', KEYS[3])
if not epoch then
  -- from the clock: after a loss of all data no fence from before is taken for one of now
  local t = redis.call('TIME')
  epoch = string.format('%d%06d', t[1], t[2])
  redis.pcall('SET', KEYS[3], epoch)
end
if not e.err and e[1] and e[2] == ARGV[2] and not e[3] and tonumber(e[1]) > tonumber(ARGV[1]) then
  return {'entry', epoch, e[4], e[5], e[6] or '0', e[7]}
end
if ARGV[3] == '' then return {'none', epoch} end
local lease = redis.pcall('SET', KEYS[2], ARGV[3], 'NX', 'PX', ARGV[4])
if not lease then return {'elsewhere', epoch} end
-- a server that takes no writes still answers for what it knows
if lease.err then return {'trouble', epoch, lease.err} end
return {'lease', epoch}
