package cni

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// maxResolvConf bounds a resolv.conf, in bytes.
const maxResolvConf = 64 << 10

// podProcess is a process of a Pod. What it has open stays the Pod's when the process ends and its number is used
// again.
type podProcess struct {
	// net is its network namespace, root its root directory, which the Pod decides about.
	net, root *os.File
}

func (p *podProcess) close() {
	_ = p.net.Close()
	_ = p.root.Close()
}

// netPath is a path of the network namespace, for as long as the process is open here.
func (p *podProcess) netPath() string { return fmt.Sprintf("/proc/self/fd/%d", p.net.Fd()) }

// openProcess opens a process of a Pod in proc, whose network namespace is not that of the node's first process. A
// Pod's processes are in control groups that are named by its uid.
func openProcess(proc, uid string) (*podProcess, error) {
	if uid == "" {
		return nil, errors.New("the Pod has no uid")
	}
	group, err := regexp.Compile(`pod` + strings.ReplaceAll(regexp.QuoteMeta(uid), "-", "[-_]") + `(\.slice)?(/|$)`)
	if err != nil {
		return nil, err
	}
	host, err := os.Stat(filepath.Join(proc, "1/ns/net"))
	if err != nil {
		return nil, fmt.Errorf("the node's network namespace: %w", err)
	}
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		if p := openOne(filepath.Join(proc, e.Name()), group, host); p != nil {
			return p, nil
		}
	}
	return nil, fmt.Errorf("no process of the Pod is found in %s: its network namespace is unknown", proc)
}

// openOne opens the process of a directory, if it is in the group and not in the node's network. The group is looked at
// again when all is open: the number may have become another process's meanwhile.
func openOne(dir string, group *regexp.Regexp, host os.FileInfo) *podProcess {
	in := func() bool {
		raw, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		return err == nil && inGroup(group, string(raw))
	}
	if !in() {
		return nil
	}
	net, err := os.Open(filepath.Join(dir, "ns/net"))
	if err != nil {
		return nil
	}
	p := &podProcess{net: net}
	fd, err := unix.Open(filepath.Join(dir, "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		_ = net.Close()
		return nil
	}
	p.root = os.NewFile(uintptr(fd), filepath.Join(dir, "root"))
	if own, err := net.Stat(); err != nil || os.SameFile(host, own) || !in() {
		p.close()
		return nil
	}
	return p
}

func inGroup(group *regexp.Regexp, cgroups string) bool {
	for line := range strings.SplitSeq(cgroups, "\n") {
		if group.MatchString(line) {
			return true
		}
	}
	return false
}

// serversOf are the name servers of /etc/resolv.conf below a root; none if there is no such regular file. Links of the
// Pod lead nowhere but to its own files, and a pipe in the file's place holds nobody up.
func serversOf(root *os.File) []string {
	fd, err := unix.Openat2(int(root.Fd()), "etc/resolv.conf", &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), "resolv.conf")
	defer f.Close() //nolint:errcheck // it is only read
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	conf, err := dns.ClientConfigFromReader(io.LimitReader(f, maxResolvConf))
	if err != nil {
		return nil
	}
	return conf.Servers
}
