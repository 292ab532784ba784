-- Hands out the job of a stream whose turn it is: of those that were handed out and not heard of for as long as a claim lives,
-- those that wait for another attempt that is due, and those that are new, the one that came first.
-- KEYS: stream, later. ARGV: now, life of a claim in ms.
local lapsed = redis.pcall('XPENDING', KEYS[1], GROUP, 'IDLE', ARGV[2], '-', '+', 1, RUNNING)
-- no stream, or no group, and so no job
if lapsed.err then
  if not string.find(lapsed.err, 'NOGROUP', 1, true) then return lapsed end
  return {'none', ''}
end
local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[1], 'WITHSCORES', 'LIMIT', 0, 1)
-- Takes an entry; `nil` when it was deleted.
local function take(entry)
  local taken = redis.call('XCLAIM', KEYS[1], GROUP, RUNNING, 0, entry)[1]
  if not taken then redis.call('XACK', KEYS[1], GROUP, entry) end
  redis.call('ZREM', KEYS[2], entry)
  return taken
end
local function place(entry)
  local at, number = string.match(entry, '(%d+)-(%d+)')
  return tonumber(at) or 0, tonumber(number) or 0
end
-- Whether the one that is due comes before an entry.
local function is_first(entry)
  local at, created_at = tonumber(due[2]), tonumber(entry[2][4]) or 0
  if at ~= created_at then return at < created_at end
  local a, a_number = place(due[1])
  local b, b_number = place(entry[1])
  return a < b or (a == b and a_number < b_number)
end
if lapsed[1] then
  local entry = take(lapsed[1][1])
  if not entry then return {'again'} end
  if not due[1] or not is_first(entry) then return {'job', entry[1], entry[2][2]} end
  -- as it was
  redis.call('XCLAIM', KEYS[1], GROUP, RUNNING, 0, entry[1], 'IDLE', ARGV[2], 'JUSTID')
else
  local read = redis.call('XREADGROUP', 'GROUP', GROUP, RUNNING, 'COUNT', 1, 'STREAMS', KEYS[1], '>')
  local entry = read and read[1][2][1]
  if entry and (not due[1] or not is_first(entry)) then return {'job', entry[1], entry[2][2]} end
  if entry then
    wait_until(KEYS[1], KEYS[2], entry[1], tonumber(entry[2][4]) or 0, math.max(redis.call('PTTL', KEYS[1]), 86400000))
  end
end
if due[1] then
  local entry = take(due[1])
  if not entry then return {'again'} end
  return {'job', entry[1], entry[2][2]}
end
local next = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
return {'none', next[2] or ''}
