-- In front of every script. The number of the latest forget. Where there is none, all data was lost, or there never was any: it
-- begins with the clock, so that no number of before comes again, and what began before is barred.
local function latest_forget(epoch, floor)
  local number = redis.call('GET', epoch)
  if number then return number end
  local t = redis.call('TIME')
  number = string.format('%d%06d', t[1], t[2])
  -- a server that takes no writes still answers for what it knows
  redis.pcall('SET', epoch, number)
  redis.pcall('SET', floor, number)
  return number
end
-- Forgets that name keys, and those that name none, are each noted in a set with a member that is never removed. Where that is
-- missing, a server that evicts has dropped the set, and what it held bars all that began until now.
local function make_whole(latest, floor, wide, keyed)
  local made = redis.call('ZADD', wide, '+inf', '-') + redis.call('ZADD', keyed, '+inf', '-')
  if made > 0 or not redis.call('GET', floor) then redis.call('SET', floor, latest) end
end
-- The number of the latest forget that is not noted any more.
local function latest_unnoted(epoch, floor, wide, keyed)
  local whole = redis.call('ZSCORE', wide, '-') and redis.call('ZSCORE', keyed, '-')
  return whole and redis.call('GET', floor) or redis.call('GET', epoch) or '0'
end
-- The number of a new forget: by the clock, so that it is later than all that were given before, those too that a failover lost.
local function next_forget(epoch, floor, wide, keyed)
  local latest = latest_forget(epoch, floor)
  make_whole(latest, floor, wide, keyed)
  local t = redis.call('TIME')
  local now = string.format('%d%06d', t[1], t[2])
  if tonumber(now) > tonumber(latest) then redis.call('SET', epoch, now) end
  return redis.call('INCR', epoch)
end
-- The next number of those in a set: later than all of them though the counter was lost, and by the clock, so that it is later than
-- all that were given before, those too that were lost with their set. Who goes on behind one of those misses nothing.
local function next_number(counter, set)
  local t = redis.call('TIME')
  local number = math.max(redis.call('INCR', counter), t[1] * 1000000 + t[2])
  local last = tonumber(redis.call('ZRANGE', set, -1, -1, 'WITHSCORES')[2])
  if last and last >= number then number = last + 1 end
  redis.call('SET', counter, string.format('%.0f', number))
  return number
end
-- Whether a lease is the one with this token; another's value is not.
local function is_held(lease, token)
  return token ~= '' and redis.pcall('GET', lease) == token
end
-- Gives a lease up, and says so if another process waits for that.
local function give_up(lease, waited, channel, message)
  if redis.call('DEL', lease, waited) > 1 then redis.call('PUBLISH', channel, message) end
end
-- Whether the index has this entry. One that it does not have is none: a forget of many would not find it.
local function is_listed(index, member, number)
  local at = redis.pcall('ZSCORE', index, member)
  return type(at) == 'string' and tonumber(at) == tonumber(number or '')
end
