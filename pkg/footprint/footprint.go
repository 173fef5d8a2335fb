// Package footprint returns memory to the system. A Keeper does so whenever the process has become idle after a burst
// of work; config-watcher, xds-server and node-agent run one as a task.
package footprint

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// CollectOften makes the garbage collector run at half the growth of the heap that it waits for by default, in a
// process whose memory matters more than what the collector takes of a core. GOGC in the environment wins.
func CollectOften() { collectAt(50) }

// CollectSeldom makes the garbage collector run at twice the growth of the heap that it waits for by default, in a
// process with a small heap and a Keeper, which gives the memory back at rest. GOGC in the environment wins.
func CollectSeldom() { collectAt(200) }

func collectAt(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// Trim collects garbage, returns freed heap to the system, and drops the pages of the binary: registering Envoy's
// message types alone reads 10 MiB of them that are not needed again. The kernel reads dropped pages from the page
// cache when they are needed.
func Trim() error {
	// sync.Pools release their contents at the second collection only.
	runtime.GC()
	debug.FreeOSMemory()
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer maps.Close()
	ranges, err := readOnly(maps, exe)
	if err != nil {
		return err
	}
	for _, r := range ranges {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, r.start, r.end-r.start, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("madvise: %w", errno)
		}
	}
	return nil
}

type addressRange struct{ start, end uintptr }

// readOnly lists the read-only mappings of the file exe, in the format of proc(5) /proc/pid/maps. A written page must
// not be dropped: its content is not in the file.
func readOnly(maps io.Reader, exe string) ([]addressRange, error) {
	var out []addressRange
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || strings.Join(fields[5:], " ") != exe || strings.Contains(fields[1], "w") {
			continue
		}
		var r addressRange
		if _, err := fmt.Sscanf(fields[0], "%x-%x", &r.start, &r.end); err != nil || r.end <= r.start {
			return nil, fmt.Errorf("mapping %q cannot be read", fields[0])
		}
		out = append(out, r)
	}
	return out, lines.Err()
}
