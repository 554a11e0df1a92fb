-- Runs job_submit.lua as slurmctld does, for tests: lua5.1 job_submit_host.lua PATH. Every line of standard input is an expression that calls
-- submit() or modify(); its answer is a line of Lua's own values, which the test's Python reads (submit_host.py).

slurm = {
	SUCCESS = 0, ERROR = -1, ESLURM_ACCESS_DENIED = 2002, ESLURM_ACCOUNTING_POLICY = 2050,
	NO_VAL = 4294967294, NO_VAL16 = 65534, NO_VAL8 = 254, NO_VAL64 = 2 ^ 64 - 2, INFINITE = 4294967295, INFINITE64 = 2 ^ 64 - 1,
}
local said, logged = {}, {}
function slurm.log_user(format, ...)
	said[#said + 1] = string.format(format, ...)
end
function slurm.log_info(format, ...)
	logged[#logged + 1] = string.format(format, ...)
end
slurm.log_error = slurm.log_info

local path, settings = arg[1], arg[2]
if settings then
	tollgate_options = assert(loadstring("return " .. settings))()
end
assert(dofile(path) == slurm.SUCCESS)

-- A job as Slurm describes one that asks for nothing; what the test sets comes before.
local defaults = {
	begin_time = 0, cpus_per_task = 65534, het_job_offset = 4294967294, immediate = 0, max_nodes = 4294967294, min_cpus = 1, min_nodes = 4294967294,
	name = "wrap", ntasks_per_node = 65534, num_tasks = 4294967294, priority = 4294967294, requeue = 65534, shared = 65534, time_limit = 4294967294,
	user_id = 1000, user_name = "alice", script = "#!/bin/sh\nsleep 1\n",
}

local function job_of(fields)
	local changes = {}
	local job = setmetatable({}, {
		__index = function(_, name)
			if changes[name] ~= nil then
				return changes[name]
			elseif fields[name] ~= nil then
				return fields[name] or nil -- false: not set
			end
			return defaults[name]
		end,
		__newindex = function(_, name, value)
			changes[name] = value
		end,
	})
	return job, changes
end

local function quoted(value)
	return type(value) == "string" and string.format("%q", value):gsub("\\\n", "\\n"):gsub("\r", "\\r"):gsub("%z", "\\0") or tostring(value)
end

local function answer(code, changes)
	local out = { "code=" .. tostring(code), "said=" .. quoted(table.concat(said, "\n")), "logged=" .. quoted(table.concat(logged, "\n")) }
	for name, value in pairs(changes) do
		out[#out + 1] = "set_" .. name .. "=" .. quoted(value)
	end
	said, logged = {}, {}
	return table.concat(out, "\t")
end

local PARTITIONS = { gpu = { flag_default = 1, max_share = 1 }, whole = { flag_default = 0, max_share = 0 } }

function submit(fields, uid)
	local job, changes = job_of(fields)
	return answer(slurm_job_submit(job, PARTITIONS, uid or 1000), changes)
end

function modify(fields, record, uid)
	for _, name in ipairs({ "min_cpus", "name", "user_id", "user_name", "script" }) do
		if fields[name] == nil then
			fields[name] = false
		end
	end
	local job, changes = job_of(fields)
	return answer(slurm_job_modify(job, record, PARTITIONS, uid or 1000), changes)
end

for line in io.lines() do
	io.write((assert(loadstring("return " .. line))():gsub("\n", "\\n")), "\n")
	io.flush()
end
