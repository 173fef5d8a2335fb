package cgroup

import (
	"os"
	"path/filepath"
	"testing"
)

// tree writes files below a directory that stands for "/".
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const (
	v2Mount = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
	v1CPU   = "31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
	v1Mem   = "32 24 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)

func TestLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string
		cpus  int
		kills uint64
		known bool
	}{
		"no /proc": {files: nil},
		"version 2": {files: map[string]string{
			"proc/self/cgroup": "0::/pod/proxy\n", "proc/self/mountinfo": v2Mount,
			"sys/fs/cgroup/pod/proxy/cpu.max":       "250000 100000\n",
			"sys/fs/cgroup/pod/proxy/memory.events": "low 0\noom 3\noom_kill 2\noom_group_kill 1\n",
		}, cpus: 3, kills: 2, known: true},
		"version 2 without a limit": {files: map[string]string{
			"proc/self/cgroup": "0::/pod\n", "proc/self/mountinfo": v2Mount,
			"sys/fs/cgroup/pod/cpu.max": "max 100000\n", "sys/fs/cgroup/pod/memory.events": "oom_kill 0\n",
		}, known: true},
		"a part of a CPU is one CPU": {files: map[string]string{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": v2Mount, "sys/fs/cgroup/cpu.max": "10000 100000\n",
		}, cpus: 1},
		"the ancestor's limit is lower": {files: map[string]string{
			"proc/self/cgroup": "0::/pod/proxy\n", "proc/self/mountinfo": v2Mount,
			"sys/fs/cgroup/pod/proxy/cpu.max": "800000 100000\n", "sys/fs/cgroup/pod/cpu.max": "200000 100000\n",
		}, cpus: 2},
		"version 1": {files: map[string]string{
			"proc/self/cgroup": "5:memory:/kube/pod\n3:cpu,cpuacct:/kube/pod\n0::/\n", "proc/self/mountinfo": v1CPU + v1Mem,
			"sys/fs/cgroup/cpu,cpuacct/kube/pod/cpu.cfs_quota_us":  "150000\n",
			"sys/fs/cgroup/cpu,cpuacct/kube/pod/cpu.cfs_period_us": "100000\n",
			"sys/fs/cgroup/memory/kube/pod/memory.oom_control":     "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n",
		}, cpus: 2, kills: 7, known: true},
		"version 1 without a limit": {files: map[string]string{
			"proc/self/cgroup": "3:cpu,cpuacct:/\n", "proc/self/mountinfo": v1CPU,
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
		}},
		"a container of version 1, whose mount is its group": {files: map[string]string{
			"proc/self/cgroup":                            "3:cpu,cpuacct:/kube/pod/c\n",
			"proc/self/mountinfo":                         "31 24 0:27 /kube/pod/c /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us":  "400000\n",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
		}, cpus: 4},
		"a name outside of the mount": {files: map[string]string{
			"proc/self/cgroup": "0::/../other\n", "proc/self/mountinfo": v2Mount, "sys/fs/cgroup/cpu.max": "100000 100000\n",
		}, cpus: 1},
		"a mount point with a space": {files: map[string]string{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": `30 24 0:26 / /my\040groups rw - cgroup2 x rw` + "\n",
			"my groups/cpu.max": "100000 50000\n",
		}, cpus: 2},
		"nonsense": {files: map[string]string{
			"proc/self/cgroup": "x\n0::/\n", "proc/self/mountinfo": "a - b\n" + v2Mount,
			"sys/fs/cgroup/cpu.max": "many few\n", "sys/fs/cgroup/memory.events": "oom_kill many\n",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			g := Own(tree(t, tc.files))
			if got := g.CPULimit(); got != tc.cpus {
				t.Errorf("%d CPUs, want %d", got, tc.cpus)
			}
			if kills, known := g.OOMKills(); kills != tc.kills || known != tc.known {
				t.Errorf("%d kills, %v; want %d, %v", kills, known, tc.kills, tc.known)
			}
		})
	}
}

// FuzzOwn: whatever the kernel writes, nothing panics and a limit is at least one CPU.
func FuzzOwn(f *testing.F) {
	f.Add("0::/pod\n", v2Mount, "250000 100000\n")
	f.Add("3:cpu,cpuacct:/../..\n", v1CPU, "-1")
	f.Fuzz(func(t *testing.T, groups, mounts, limit string) {
		if got := Own(tree(t, map[string]string{"proc/self/cgroup": groups, "proc/self/mountinfo": mounts,
			"sys/fs/cgroup/cpu.max": limit})).CPULimit(); got < 0 {
			t.Errorf("%d CPUs", got)
		}
	})
}
