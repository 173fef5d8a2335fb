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
	"fairlead.dev/tests/internal/process"
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
	p, err := machine.Start(process.Program{
		Name: "go test", Path: "go", Stderr: filepath.Join(l.dir, "planning.log"),
		Args: []string{"test", "-run", "^$", "-bench", "^" + coldStartBenchmark + "$", "-benchtime", strconv.Itoa(runs) + "x",
			"./services/xds-server/internal/translate"},
		Change: func(cmd *exec.Cmd) error {
			cmd.Stdout = &out
			return nil
		},
	}, l.allCores())
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, p.KillGroup)()
	_ = p.Err() // what it has printed tells more
	one, two, err := coldStarts(out.String())
	if err != nil {
		return fmt.Errorf("%w: %s\n%s", err, out.String(), p.LogTail())
	}
	t.speedLine("planning/cores", "planning 100 classes at the same time: two cores beside one", two, one, 1.6)
	return nil
}

// allCores are those of the server and of the clients.
func (l *lab) allCores() *unix.CPUSet {
	var all unix.CPUSet
	for cpu := range 1024 {
		if l.cores.Server.IsSet(cpu) || l.cores.Clients.IsSet(cpu) {
			all.Set(cpu)
		}
	}
	return &all
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
