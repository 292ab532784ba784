-- Looks an entry up, and where there is none takes the lease on the attempt.
-- KEYS: entry, lease, epoch, floor, index. ARGV: now, schema, token (empty: only looks), lease in ms, fingerprint, '1' to pass over
-- an entry that was found to be of no use, another schema that is read.
local e = redis.pcall('HMGET', KEYS[1], 'x', 'c', 's', 'm', 'b', 'n', 'q')
local epoch = latest_forget(KEYS[3], KEYS[4])
if ARGV[6] ~= '1' and not e.err and e[1] and (e[2] == ARGV[2] or e[2] == ARGV[7]) and not e[3] and (tonumber(e[1]) or 0) > tonumber(ARGV[1])
  and is_listed(KEYS[5], ARGV[5], e[7]) then
  return {'entry', epoch, e[4] or '', e[5] or '', e[6] or '0'}
end
if ARGV[3] == '' then return {'none', epoch} end
local lease = redis.pcall('SET', KEYS[2], ARGV[3], 'NX', 'PX', ARGV[4])
if not lease then
  local left = redis.call('PTTL', KEYS[2])
  if left >= 0 and left <= tonumber(ARGV[4]) then
    local holder = redis.pcall('GET', KEYS[2])
    return {'elsewhere', epoch, type(holder) == 'string' and holder or ''}
  end
  -- no lease lives that long: it is a stranger's, and would block for as long
  lease = redis.pcall('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
end
-- a server that takes no writes still answers for what it knows
if lease.err then return {'trouble', epoch, lease.err} end
return {'lease', epoch}
