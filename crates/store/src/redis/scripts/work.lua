-- In front of the scripts of operations and jobs. One group reads each stream. Its two consumers are two states: who has a job
-- stands with the job.
local GROUP, RUNNING, WAITING = 'workers', 'running', 'waiting'
-- Lets a key live at least this long, in ms.
local function keep(key, ms)
  if redis.call('PTTL', key) < tonumber(ms) then redis.call('PEXPIRE', key, ms) end
end
-- How many jobs of a stream workers have.
local function running(stream)
  local pending = redis.pcall('XPENDING', stream, GROUP)
  if pending.err then return 0 end
  for _, consumer in ipairs(pending[4] or {}) do
    if consumer[1] == RUNNING then return tonumber(consumer[2]) end
  end
  return 0
end
-- Puts a job at the end of a stream. The group begins at the first entry, so it makes no difference which of both comes first.
local function enqueue(stream, id, created_at, ms)
  local entry = redis.call('XADD', stream, '*', 'j', id, 'c', created_at)
  if redis.pcall('XPENDING', stream, GROUP).err then redis.call('XGROUP', 'CREATE', stream, GROUP, '0') end
  keep(stream, ms)
  return entry
end
-- Takes a job out of a stream.
local function dequeue(stream, later, entry)
  redis.call('ZREM', later, entry)
  redis.pcall('XACK', stream, GROUP, entry)
  redis.call('XDEL', stream, entry)
end
-- A job of a stream waits until then.
local function wait_until(stream, later, entry, at, ms)
  redis.call('XCLAIM', stream, GROUP, WAITING, 0, entry, 'JUSTID')
  redis.call('ZADD', later, at, entry)
  keep(later, ms)
end
-- When the end of a tenant's job is to be told; `nil` = never, or no more. The tenant stands among those that have such ends by when its
-- first one is.
local function tell_at(tenants, ends, tenant, id, at, ms)
  if at then
    redis.call('ZADD', ends, at, id)
    keep(ends, ms)
  else
    redis.call('ZREM', ends, id)
  end
  local first = redis.call('ZRANGE', ends, 0, 0, 'WITHSCORES')
  if first[1] then
    redis.call('ZADD', tenants, first[2], tenant)
    keep(tenants, redis.call('PTTL', ends))
  else
    redis.call('ZREM', tenants, tenant)
  end
end
