-- job_submit.lua: asks tollgate-agent what becomes of a job that wants GPUs. Lua 5.1, lua-socket.
--
-- slurmctld runs this under its locks, one job at a time, so it must never wait. Rules:
--  1. A job that wants no GPU, and no node for itself, passes without a question.
--  2. The agent has `timeout_ms` in all, from connect to the last byte. It answers with one line: pass, hold or refuse, a text, and what to set.
--  3. An agent that does not answer, or not in its own language, is left alone for `pause_s` seconds; meanwhile `agent_down` decides.
--  4. A held job has priority 0 and a mark in AdminComment, which users cannot write. The agent lifts the hold when the job is admitted.
--  5. A user's change of a marked job is asked about: lifting our hold, account, GPUs, partition, QOS, nodes, reservation, begin time, time limit. So is one
--     that would give GPUs, or a whole node, to a job without a mark. While we hold a job its nice value stays: under priority/basic a new one lifts the hold.
--     root and SlurmUser are not asked about, the agent's own scontrol among them: it would wait for its own answer.
--  6. root's and SlurmUser's will-run test (--comment=tollgate:will-run) passes: held, it would answer with the end of time.
--
-- A site that has a job_submit.lua of its own sets tollgate_options, if it wants other values, loads this file with dofile(), and calls
-- slurm_job_submit and slurm_job_modify of this file at the end of its own.

local socket = require("socket")
local unix = require("socket.unix")

local options = {
	socket = "/run/tollgate-agent/agent.sock",
	timeout_ms = 100, -- for one question, in all
	pause_s = 10, -- after a question that was not answered
	agent_down = "hold", -- or "pass", "refuse": jobs that want GPUs while the agent does not answer
}
for name, value in pairs(tollgate_options or {}) do
	if options[name] == nil then
		error("tollgate_options." .. tostring(name) .. ": no such option; there are socket, timeout_ms, pause_s, agent_down")
	end
	options[name] = value
end
if not ({ hold = true, pass = true, refuse = true })[options.agent_down] then
	error('tollgate_options.agent_down is "' .. tostring(options.agent_down) .. '"; it may be hold, pass or refuse')
end

local LINE_MAX = 65536 -- of a question and of an answer, in bytes
local TEXT_MAX = 1024 -- for people
local CUT_AT = 4096 -- names, comments and lists of array tasks: the agent reads them whole from Slurm
local WILL_RUN = "tollgate:will-run"
local TRES = { "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task" }
local GPU_NAMES = { gpu = true, mps = true, shard = true }
local SIGNALS = { HUP = 1, INT = 2, QUIT = 3, KILL = 9, USR1 = 10, USR2 = 12, ALRM = 14, TERM = 15, CONT = 18, STOP = 19, TSTP = 20, URG = 23, XCPU = 24 }

-- ---- values ----

-- Slurm's "not set" and "no limit", of every width, are no numbers.
local function number(value)
	if type(value) ~= "number" or value ~= value then
		return nil
	end
	for _, name in ipairs({ "NO_VAL", "NO_VAL16", "NO_VAL8", "NO_VAL64", "INFINITE", "INFINITE64" }) do
		if value == slurm[name] then
			return nil
		end
	end
	if value >= 2 ^ 53 or value < 0 then
		return nil
	end
	return value
end

local function text(value)
	if type(value) == "string" and value ~= "" then
		return value
	end
	return nil
end

local function flag(value)
	return value and 1 or 0
end

local function encode(value)
	if type(value) == "number" then
		return string.format("%.0f", value)
	end
	return (value:gsub("[^%w%._:/,@+-]", function(c)
		return string.format("%%%02X", c:byte())
	end))
end

local function decode(value)
	return (value:gsub("%%(%x%x)", function(hex)
		return string.char(tonumber(hex, 16))
	end))
end

-- The lines of a text for people, without control characters.
local function readable(value)
	return (value:sub(1, TEXT_MAX):gsub("[%z\1-\9\11-\31\127]", " "))
end

local function cut_list(value)
	if value and #value > CUT_AT then
		return value:sub(1, CUT_AT):match("^(.*),") or value:sub(1, CUT_AT)
	end
	return value
end

-- "gres:gpu:a100:2", "gres/gpu:2", "gpu:2,shard:10", "cpu=4,gres/gpu=1". Slurm looks for "gres" anywhere in an entry and for no divider after it, so that
-- "xgresgpu:2" is a GPU too.
local function has_gpus(value)
	for entry in (text(value) or ""):gmatch("[^,]+") do
		if GPU_NAMES[entry:match("^%s*(%w+)")] then
			return true
		end
		for at in entry:gmatch("gres()") do
			if GPU_NAMES[entry:match("^[:/]?(%w+)", at)] then
				return true
			end
		end
	end
	return false
end

local function wants_gpus(job)
	for _, name in ipairs(TRES) do
		if has_gpus(job[name]) then
			return true
		end
	end
	-- --ntasks-per-gpu alone makes Slurm count the GPUs from the tasks
	return has_gpus(job.gres) or (number(job.ntasks_per_tres) or number(job.ntasks_per_gpu) or 0) > 0
end

-- The signal that a script asks for before its end, by its number, and whether its shell alone gets it. The command line's is not to be seen from here.
local function declared_signal(script)
	local found, batch
	for line in ((script or ""):sub(1, LINE_MAX)):gmatch("[^\n]+") do
		if not line:match("^%s*#") and line:match("%S") then
			break -- sbatch reads no further either
		end
		local value = line:match("^#SBATCH.-%-%-signal[=%s]+(%S+)")
		if value then
			local before, name = value:match("^(%a*):?([%w]+)@?%d*$")
			if value:find(":", 1, true) == nil then
				before, name = "", value:match("^([%w]+)")
			end
			name = (name or ""):upper():gsub("^SIG", "")
			found, batch = SIGNALS[name] or tonumber(name), (before or ""):upper():find("B", 1, true) ~= nil
		end
	end
	if found and found >= 1 and found <= 64 then
		return found, batch
	end
	return nil
end

-- ---- the agent ----

local silent_until, silent_since = nil, nil

local function agent_is_silent()
	local now = os.time()
	-- a clock that was set back must not prolong it
	return silent_until ~= nil and now < silent_until and now >= silent_since
end

local function agent_failed(why)
	silent_since = os.time()
	silent_until = silent_since + options.pause_s
	slurm.log_info("tollgate: %s: %s; not asked for %d s, jobs with GPUs: %s", options.socket, why, options.pause_s, options.agent_down)
end

-- One line there, one line back. nil and a reason when there is none.
local function exchange(line)
	local started = socket.gettime()
	local budget = options.timeout_ms / 1000
	local function left()
		local passed = socket.gettime() - started
		if passed < 0 or passed >= budget then
			return nil
		end
		return budget - passed
	end
	local s = unix.stream and unix.stream() or unix()
	s:settimeout(budget, "t")
	local ok, why = s:connect(options.socket)
	if not ok then
		s:close()
		return nil, why or "cannot connect"
	end
	local sent = 0
	while sent < #line do
		local rest = left()
		if not rest then
			s:close()
			return nil, "timeout"
		end
		s:settimeout(rest, "t")
		local last, failure, partly = s:send(line, sent + 1)
		if not last and failure ~= "timeout" then
			s:close()
			return nil, failure
		end
		sent = last or partly or sent
	end
	local rest = left()
	if not rest then
		s:close()
		return nil, "timeout"
	end
	s:settimeout(rest, "t")
	local whole, failure = s:receive("*l")
	s:close()
	if whole and #whole > LINE_MAX then
		return nil, "an answer of more than " .. LINE_MAX .. " bytes"
	elseif whole then
		return whole
	end
	return nil, failure == "closed" and "an answer without its end" or failure or "no answer"
end

-- verb TAB text TAB name=value ...; the text may be missing. nil: it is not that.
local function parse(answer, verbs)
	local fields = {}
	for field in (answer .. "\t"):gmatch("([^\t]*)\t") do
		fields[#fields + 1] = field
	end
	local reply = { verb = fields[1], text = "", set = {} }
	if not verbs[reply.verb] then
		return nil
	end
	for i = 2, #fields do
		local name, value = fields[i]:match("^([%w_:]+)=(.*)$")
		if name == "admin_comment" then
			reply.admin_comment = readable(decode(value)):gsub("\n", " ")
		elseif name and name:match("^set:") then
			reply.set[name:sub(5)] = decode(value)
		elseif name == nil and i == 2 then
			reply.text = readable(decode(fields[i]))
		elseif name == nil then
			return nil
		end
	end
	for name, value in pairs(reply.set) do
		-- the GPU request, typed, and nothing else of the job
		if not (name:match("^tres_per_") and has_gpus(value) and #value <= TEXT_MAX and value:match("^[%w%._:/,=+-]+$")) then
			return nil
		end
	end
	return reply
end

-- nil: the agent does not answer.
local function ask(verb, fields, verbs)
	if agent_is_silent() then
		return nil
	end
	local parts = { verb }
	for _, field in ipairs(fields) do
		parts[#parts + 1] = field[1] .. "=" .. encode(field[2])
	end
	local line = table.concat(parts, "\t") .. "\n"
	if #line > LINE_MAX then
		return { verb = "refuse", text = string.format("Tollgate: the request has %d bytes; at most %d can be asked about", #line, LINE_MAX), set = {} }
	end
	local answer, why = exchange(line)
	local reply = answer and parse(answer, verbs)
	if not reply then
		agent_failed(why or ("an answer that is none: " .. readable(answer:sub(1, 80))))
		return nil
	end
	if silent_until then
		slurm.log_info("tollgate: %s answers again", options.socket)
		silent_until = nil
	end
	return reply
end

-- ---- jobs ----

-- slurmctld runs as SlurmUser.
local function own_uid()
	local f = io.open("/proc/self/status")
	if not f then
		return 0
	end
	local status = f:read("*a")
	f:close()
	return tonumber(status:match("\nUid:%s*%d+%s+(%d+)")) or 0
end
local slurm_uid = own_uid()

local function privileged(uid)
	return uid == 0 or uid == slurm_uid
end

local function partition_of(job, partitions)
	if text(job.partition) then
		return job.partition
	end
	for name, partition in pairs(partitions or {}) do
		if partition.flag_default == 1 then
			return name
		end
	end
	return nil
end

-- --exclusive, a partition with OverSubscribe=EXCLUSIVE, or specialized cores, with which Slurm gives whole nodes: all of the node is the job's.
local function is_exclusive(job, partition_names, partitions)
	if job.shared == 0 or number(job.core_spec) then
		return true
	end
	for name in (partition_names or ""):gmatch("[^,]+") do
		local partition = (partitions or {})[name]
		if partition and (partition.max_share or partition.max_oversubscribe) == 0 then
			return true
		end
	end
	return false
end

local function adder(fields)
	return function(name, value)
		if value ~= nil then
			fields[#fields + 1] = { name, value }
		end
	end
end

local function minutes(value)
	local n = number(value)
	return n and n * 60
end

-- What a submission and a change have in common.
local function add_request(add, job)
	add("account", text(job.account))
	add("qos", text(job.qos))
	local begin = number(job.begin_time)
	add("begin", begin ~= 0 and begin or nil)
	add("time_limit_s", minutes(job.time_limit))
	add("time_unlimited", job.time_limit == slurm.INFINITE and 1 or nil)
	add("min_nodes", number(job.min_nodes))
	add("max_nodes", number(job.max_nodes))
	add("tasks", number(job.num_tasks))
	add("tasks_per_gpu", number(job.ntasks_per_tres) or number(job.ntasks_per_gpu))
	add("sockets_per_node", number(job.sockets_per_node))
	add("features", text(job.features))
	add("nodes", text(job.req_nodes) and job.req_nodes:sub(1, CUT_AT))
	add("reservation", text(job.reservation))
	for _, name in ipairs(TRES) do
		add(name, text(job[name]))
	end
	add("gres", text(job.gres))
end

-- Components of a heterogeneous job come one after the other; only the first has the script.
local leader = { script = false }

local function submission(job, partitions, partition, exclusive, submit_uid)
	local fields = {}
	local add = adder(fields)
	local component = number(job.het_job_offset)
	local script = text(job.script)
	if component == nil or component == 0 then
		leader.script = script ~= nil
	end
	local batch = script ~= nil or ((component or 0) > 0 and leader.script)
	if not text(job.account) then
		add("account", text(job.default_account))
	end
	add_request(add, job)
	add("user", text(job.user_name))
	add("uid", number(job.user_id))
	add("submit_uid", submit_uid)
	add("partition", partition)
	add("name", text(job.name) and job.name:sub(1, CUT_AT))
	add("array", cut_list(text(job.array_inx)))
	add("het_index", component)
	add("cpus", number(job.min_cpus))
	add("cpus_per_task", number(job.cpus_per_task))
	add("tasks_per_node", number(job.ntasks_per_node))
	add("memory_mb", number(job.min_mem_per_node))
	add("memory_per_cpu_mb", number(job.min_mem_per_cpu))
	add("exclusive", flag(exclusive))
	add("requeue", number(job.requeue))
	add("interactive", flag(not batch))
	add("immediate", number(job.immediate))
	add("priority_hold", flag(job.priority == 0))
	add("comment", text(job.comment) and job.comment:sub(1, CUT_AT))
	add("script", flag(script))
	local signal, signal_batch = declared_signal(script)
	add("signal", signal)
	add("signal_batch", signal and flag(signal_batch))
	return fields
end

-- What the agent would have written beside a job that it holds.
local function waiting_mark(job)
	local signal, signal_batch = declared_signal(text(job.script))
	return string.format("tollgate wait.0%s%s agent: the quota agent did not answer at submission", job.priority == 0 and "u" or "",
		signal and ((signal_batch and "b" or "s") .. signal) or "")
end

function slurm_job_submit(job, partitions, submit_uid)
	if text(job.admin_comment) and job.admin_comment:match("^tollgate") and not privileged(submit_uid) then
		job.admin_comment = ""
	end
	local partition = partition_of(job, partitions)
	local exclusive = is_exclusive(job, partition, partitions)
	if not exclusive and not wants_gpus(job) then -- 1
		return slurm.SUCCESS
	end
	if privileged(submit_uid) and job.comment == WILL_RUN then -- 6
		return slurm.SUCCESS
	end

	local reply = ask("submit", submission(job, partitions, partition, exclusive, submit_uid), { pass = true, hold = true, refuse = true })
	if not reply then -- 3
		local words = {
			hold = "Tollgate: the quota agent does not answer; the job waits until it does",
			refuse = "Tollgate: the quota agent does not answer; jobs with GPUs are not taken meanwhile",
		}
		reply = { verb = options.agent_down, text = words[options.agent_down] or "", set = {} }
		if reply.verb == "hold" and number(job.het_job_offset) then
			-- releasing one component releases all, and this hook is asked about the one alone: a hold would not hold
			reply.verb, reply.text = "refuse", "Tollgate: the quota agent does not answer; heterogeneous jobs with GPUs are not taken meanwhile"
		end
		if reply.verb == "hold" then
			reply.admin_comment = waiting_mark(job)
		end
	end
	if reply.text ~= "" then
		slurm.log_user("%s", reply.text)
	end
	if reply.verb == "refuse" then
		return slurm.ESLURM_ACCOUNTING_POLICY or slurm.ERROR
	end
	for name, value in pairs(reply.set) do
		job[name] = value
	end
	if reply.admin_comment then
		job.admin_comment = reply.admin_comment
	end
	if reply.verb == "hold" then -- 4
		job.priority = 0
	end
	return slurm.SUCCESS
end

-- ---- changes ----

local HELD_BY_US = { wait = true, back = true, drain = true }

-- The answer without the agent: our hold stays, an admitted job stays as it was admitted and does not begin a second time, and a job without a mark gets no GPU.
local function guard_alone(word, hold, only_hold, pending)
	if not word or hold ~= nil and HELD_BY_US[word] or hold == 0 and pending then
		return false
	end
	return only_hold or word ~= "run" and word ~= "drain"
end

function slurm_job_modify(job, record, partitions, submit_uid)
	local mark = text(record.admin_comment) and record.admin_comment:match("^tollgate (%a+)")
	local exclusive = is_exclusive(job, text(job.partition), partitions)
	if privileged(submit_uid) or not mark and not exclusive and not wants_gpus(job) then -- 5
		return slurm.SUCCESS
	end
	if number(job.nice) and HELD_BY_US[mark] then
		slurm.log_info("tollgate: nice value of JobId=%s, which waits for its quota, not changed for uid %s", tostring(record.job_id), tostring(submit_uid))
		return slurm.ESLURM_ACCESS_DENIED or slurm.ERROR
	end
	local fields = {}
	local add = adder(fields)
	local hold
	if job.priority == 0 then
		hold = 1
	elseif job.priority ~= nil and job.priority ~= slurm.NO_VAL then
		hold = 0
	end
	add("hold", hold)
	local holds = #fields
	add_request(add, job)
	add("partition", text(job.partition))
	if #fields == 0 and not exclusive then
		return slurm.SUCCESS
	end
	local only_hold = #fields == holds and not exclusive
	add("exclusive", exclusive and 1 or nil)
	add("job", number(record.job_id))
	add("uid", submit_uid)
	local array = number(record.array_job_id)
	if array and array ~= 0 then
		add("array_job", array)
		add("array_task", number(record.array_task_id))
	end
	local het = number(record.het_job_id)
	add("het_job", het ~= 0 and het or nil)
	add("was_account", text(record.account))
	add("was_partition", text(record.partition))
	add("state", record.job_state == 0 and "pending" or "running")
	add("admin_comment", mark and record.admin_comment:sub(1, CUT_AT))

	local reply = ask("modify", fields, { pass = true, refuse = true })
	local allowed
	if reply then
		allowed = reply.verb == "pass"
	else
		allowed = guard_alone(mark, hold, only_hold, record.job_state == 0)
	end
	if allowed then
		return slurm.SUCCESS
	end
	slurm.log_info("tollgate: change of JobId=%s by uid %s refused: %s", tostring(record.job_id), tostring(submit_uid),
		reply and reply.text or "the quota agent does not answer")
	return slurm.ESLURM_ACCESS_DENIED or slurm.ERROR
end

return slurm.SUCCESS
