package netns

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"fairlead.dev/tests/internal/process"
)

// Program says what to run on a machine.
type Program = process.Program

// Process is a program that runs.
type Process = process.Process

// Start runs a program on the machine. The kernel kills it if the process of the tests dies.
func (h *Host) Start(p Program) (*Process, error) { return process.Start(p, h.enter) }

// Start runs a program where the tests run. The kernel kills it if the process of the tests dies.
func Start(p Program) (*Process, error) { return process.Start(p, nil) }

// Left lists the processes that run on machines, besides the tests' own.
func Left(hosts ...*Host) []string {
	of := map[string]*Host{}
	for _, h := range hosts {
		of[fmt.Sprintf("net:[%d]", h.inode)] = h
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return []string{err.Error()}
	}
	var left []string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		link, err := os.Readlink("/proc/" + e.Name() + "/ns/net")
		if h := of[link]; err == nil && h != nil {
			command, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
			left = append(left, fmt.Sprintf("process %d on %s: %s", pid, h.Name, strings.ReplaceAll(string(command), "\x00", " ")))
		}
	}
	return left
}

// Children lists the processes that a process has started.
func Children(pid int) []int {
	var out []int
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is a good one
	for _, list := range lists {
		raw, _ := os.ReadFile(list) // a thread that is gone has none
		for _, f := range strings.Fields(string(raw)) {
			if child, err := strconv.Atoi(f); err == nil {
				out = append(out, child)
			}
		}
	}
	return out
}
