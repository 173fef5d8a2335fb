package suite

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/tests/bench/internal/machine"
)

// coldStartBenchmark is a benchmark of xds-server's packages: it plans 100 classes at the same time.
const coldStartBenchmark = "BenchmarkConcurrentColdStart"

// planning measures how many times as fast xds-server plans on two processors as on one. Planning is internal to
// xds-server, so its own benchmark is run, on all cores. The row needs the source tree as the working directory.
func (l *lab) planning(ctx context.Context, t *table) error {
	runs := 8
	if l.Full {
		runs = 20
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^"+coldStartBenchmark+"$", //nolint:gosec // fixed but for a number
		"-benchtime", strconv.Itoa(runs)+"x", "./services/xds-server/internal/translate")
	cmd.Stdout = &out
	var all unix.CPUSet
	for cpu := range 1024 {
		if l.cores.Server.IsSet(cpu) || l.cores.Clients.IsSet(cpu) {
			all.Set(cpu)
		}
	}
	p, err := machine.Start(cmd, &all, filepath.Join(l.dir, "planning.log"))
	if err != nil {
		return err
	}
	<-p.Exited()
	one, two, err := coldStarts(out.String())
	if err != nil {
		return fmt.Errorf("%w: %s\n%s", err, out.String(), p.LogTail())
	}
	t.speedLine("planning/cores", "planning 100 classes at the same time: two cores beside one", two, one, 1.6)
	return nil
}

// coldStarts returns the shortest time on one processor and on two, as the benchmark reports them.
func coldStarts(output string) (one, two time.Duration, err error) {
	for metric, to := range map[string]*time.Duration{"one-processor-ns": &one, "two-processors-ns": &two} {
		m := regexp.MustCompile(`(?m)^` + coldStartBenchmark + `\b.*\s(\d+) ` + metric).FindStringSubmatch(output)
		if m == nil {
			return 0, 0, fmt.Errorf("%s reports no %s", coldStartBenchmark, metric)
		}
		ns, err := strconv.ParseInt(m[1], 10, 64)
		if err != nil {
			return 0, 0, err
		}
		*to = time.Duration(ns)
	}
	return one, two, nil
}
