package issuing

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/tests/bench/internal/machine"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/process"
)

// ProberRole is the argument by which the benchmark's binary becomes the process that probes health. It is a process of
// its own because the kubelet is: among thousands of agents' goroutines it would wait for its turn.
const ProberRole = "prober"

const (
	probeEvery = 100 * time.Millisecond
	// probeTimeout is the kubelet's default.
	probeTimeout = time.Second
)

// probed is what a prober has seen.
type probed struct {
	Probes, Sick int
	// Slowest is how long the slowest probe took.
	Slowest time.Duration
	// First is the first error.
	First string
}

// prober is a running process that probes.
type prober struct {
	*machine.Process

	in  io.WriteCloser
	out *bufio.Reader
}

// startProber asks for a page again and again until end is called.
func startProber(url, log string, on *unix.CPUSet) (*prober, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &prober{}
	p.Process, err = machine.Start(process.Program{
		Name: "prober", Path: self, Args: []string{ProberRole, url}, Stderr: log,
		Change: func(cmd *exec.Cmd) (err error) {
			if p.in, err = cmd.StdinPipe(); err != nil {
				return err
			}
			cmd.Stdout = nil
			out, err := cmd.StdoutPipe()
			p.out = bufio.NewReader(out)
			return err
		},
	}, on)
	return p, err
}

// end ends the process and returns what it has seen.
func (p *prober) end() (out probed, err error) {
	defer p.Kill()
	if err := p.in.Close(); err != nil {
		return out, err
	}
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return out, fmt.Errorf("the prober has ended: %w: %s", err, p.LogTail())
	}
	return out, json.Unmarshal(line, &out)
}

// ServeProber is the process that probes a URL until in ends.
func ServeProber(url string, in io.Reader, out io.Writer) error {
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, in)
		stop()
	}()
	client := probe.Client(nil)
	client.Timeout = probeTimeout
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	var seen probed
	for ctx.Err() == nil {
		began := time.Now()
		err := healthy(client, url)
		seen.Slowest = max(seen.Slowest, time.Since(began))
		seen.Probes++
		if err != nil {
			if seen.Sick++; seen.Sick == 1 {
				seen.First = err.Error()
			}
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	return json.NewEncoder(out).Encode(seen)
}

func healthy(client *http.Client, url string) error {
	answer, err := client.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}
