// Package cgroup reads what the kernel's control groups, of version 1 and 2, say about this process: how much CPU time
// it may use, and how many processes of its group the kernel has killed for want of memory. Package config calls
// CPULimit once, at the start; the supervisor of Envoy calls OOMKills before Envoy starts and after it has ended.
package cgroup

import (
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Groups are the control groups of this process, one for each controller that limits it. It is safe for concurrent use.
type Groups struct {
	cpu, memory []group
}

// group is a directory of a hierarchy. Its ancestors, up to the directory top, limit the process, too.
type group struct{ dir, top string }

// Own finds the control groups of this process. root is "/" in production. Without a readable /proc, or without mounted
// hierarchies, there are none, and nothing is limited.
func Own(root string) *Groups {
	memberships, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	mounts, _ := os.ReadFile(filepath.Join(root, "proc/self/mountinfo"))
	g := &Groups{}
	for line := range strings.Lines(string(memberships)) {
		// "4:memory:/pod", or "0::/pod" for version 2 (cgroups(7)).
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		controllers := strings.Split(parts[1], ",")
		unified := parts[1] == ""
		for _, c := range []struct {
			name string
			into *[]group
		}{{"cpu", &g.cpu}, {"memory", &g.memory}} {
			if !unified && !slices.Contains(controllers, c.name) {
				continue
			}
			if found, ok := locate(string(mounts), parts[2], c.name, unified); ok {
				found.dir, found.top = filepath.Join(root, found.dir), filepath.Join(root, found.top)
				*c.into = append(*c.into, found)
			}
		}
	}
	return g
}

// locate finds the directory of the control group named member in the mounts, which are lines of
// "36 35 98:0 /root /mount/point rw,noatime master:1 - cgroup2 cgroup rw,memory" (proc_pid_mountinfo(5)).
func locate(mounts, member, controller string, unified bool) (group, bool) {
	for line := range strings.Lines(mounts) {
		before, after, ok := strings.Cut(line, " - ")
		fields, tail := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(tail) < 3 {
			continue
		}
		if unified && tail[0] != "cgroup2" || !unified && (tail[0] != "cgroup" || !slices.Contains(strings.Split(tail[2], ","), controller)) {
			continue
		}
		root, point := unescape.Replace(fields[3]), unescape.Replace(fields[4])
		// A container often sees its own group as the root of the mount, but the name that the host gives to it.
		dir := point
		if below, ok := strings.CutPrefix(member, strings.TrimSuffix(root, "/")+"/"); ok && !strings.HasPrefix(below, "..") {
			dir = path.Join(point, path.Clean("/"+below))
		}
		return group{dir: dir, top: point}, true
	}
	return group{}, false
}

// unescape undoes how the kernel writes white space in mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// CPULimit is the number of CPUs whose time this process may use, rounded up as Istio's injection does; 0 without a
// limit.
func (g *Groups) CPULimit() int {
	least := math.Inf(1)
	for _, each := range g.cpu {
		for dir := each.dir; ; dir = filepath.Dir(dir) {
			least = min(least, quota(dir))
			if dir == each.top || len(dir) <= len(each.top) {
				break
			}
		}
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return max(int(math.Ceil(min(least, math.MaxInt32))), 1)
}

// quota is the limit in one directory, in CPUs; infinite without one.
func quota(dir string) float64 {
	quota, period := read(dir, "cpu.cfs_quota_us"), read(dir, "cpu.cfs_period_us")
	if fields := strings.Fields(read(dir, "cpu.max")); len(fields) == 2 {
		quota, period = fields[0], fields[1]
	}
	q, errQuota := strconv.ParseInt(quota, 10, 64)
	p, errPeriod := strconv.ParseInt(period, 10, 64)
	if errQuota != nil || errPeriod != nil || q <= 0 || p <= 0 { // "max" and -1 are no limit
		return math.Inf(1)
	}
	return float64(q) / float64(p)
}

// OOMKills is how many processes of this process's group the kernel has killed because memory ran out. known is false
// where the kernel does not count.
func (g *Groups) OOMKills() (kills uint64, known bool) {
	for _, each := range g.memory {
		for _, file := range []string{"memory.events", "memory.oom_control"} {
			for line := range strings.Lines(read(each.dir, file)) {
				value, ok := strings.CutPrefix(line, "oom_kill ")
				if n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64); ok && err == nil {
					kills, known = kills+n, true
				}
			}
		}
	}
	return kills, known
}

// read returns a file of the kernel without the white space around it; "" if there is none.
func read(dir, name string) string {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
