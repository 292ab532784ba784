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
-- What a job counts for: its member of ends, the bytes that are kept of it, whether it waits.
local function record_of(member, bytes, waits)
  local who, upstream = string.match(member, '^(%S+ %S+) (%S+)$')
  return string.format('%s %.0f%s', who, bytes, waits and ' ' .. upstream or '')
end
-- Changes a sum. None is below zero, and one that is zero is not there.
local function add(sums, field, by)
  if by == 0 then return end
  if redis.call('HINCRBY', sums, field, string.format('%.0f', by)) <= 0 then redis.call('HDEL', sums, field) end
end
-- Adds a record to the sums, or takes it away (1 or -1).
local function sum_up(sums, record, by)
  local tenant, bytes, upstream = string.match(record, '^%S+ (%S+) (%d+) ?(%S*)$')
  if not tenant then return end
  add(sums, '', by * bytes)
  add(sums, tenant, by * bytes)
  if upstream ~= '' then add(sums, tenant .. ' ' .. upstream, by) end
end
-- From now on a job counts for this, until it is removed. The sums are those of the records, whoever removes the job, or its keys:
-- a record goes by its time. One that was taken in by a version that did not count is counted from now on.
local function count(records, sums, job, record, removed_at, ms)
  local was = redis.call('HGET', job, 'k')
  if was and was ~= record and redis.call('ZREM', records, was) == 1 then sum_up(sums, was, -1) end
  if redis.call('ZADD', records, removed_at, record) == 1 then sum_up(sums, record, 1) end
  redis.call('HSET', job, 'k', record)
  keep(records, ms)
  keep(sums, ms)
end
