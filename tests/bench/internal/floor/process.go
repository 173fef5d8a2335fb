package floor

import (
	"bufio"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"fairlead.dev/tests/bench/internal/machine"
	"fairlead.dev/tests/bench/internal/wire"
	"fairlead.dev/tests/internal/process"
)

// Role is the argument by which the benchmark's binary becomes the floor's process.
const Role = "floor"

// Process is a floor's process, as its driver sees it.
type Process struct {
	*machine.Process
	// Address it serves on.
	Address string

	dir string
	in  io.WriteCloser
	out *bufio.Reader
}

// Start runs the calling program again, as a floor.
func Start(dir string, on *unix.CPUSet, files Files) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &Process{dir: dir}
	log := filepath.Join(dir, "floor.log")
	if p.Process, err = machine.Start(process.Program{
		Name: "floor", Path: self, Args: []string{Role, files.Cert, files.Key, files.Roots}, Stderr: log,
		Change: func(cmd *exec.Cmd) (err error) {
			if p.in, err = cmd.StdinPipe(); err != nil {
				return err
			}
			cmd.Stdout = nil
			out, err := cmd.StdoutPipe()
			p.out = bufio.NewReader(out)
			return err
		},
	}, on); err != nil {
		return nil, err
	}
	if p.Address, err = p.line(); err != nil {
		p.Stop()
		return nil, err
	}
	return p, nil
}

func (p *Process) line() (string, error) {
	line, err := p.out.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("floor: %w\n%s", err, p.LogTail())
	}
	return strings.TrimSpace(line), nil
}

func (p *Process) command(text string) error {
	if _, err := fmt.Fprintln(p.in, text); err != nil {
		return fmt.Errorf("floor: %w\n%s", err, p.LogTail())
	}
	answer, err := p.line()
	if err == nil && answer != "ok" {
		err = errors.New("floor: " + answer)
	}
	return err
}

// Load hands over what to push.
func (p *Process) Load(scripts map[string][]*wire.Content, cold bool) error {
	path := filepath.Join(p.dir, "script")
	defer os.Remove(path)
	if err := newScript(scripts, cold).write(path); err != nil {
		return err
	}
	return p.command("load " + path)
}

// newScript numbers the contents.
func newScript(scripts map[string][]*wire.Content, cold bool) *Script {
	s := &Script{Nodes: map[string][]int{}, Cold: cold}
	numbers := map[*wire.Content]int{}
	for node, contents := range scripts {
		for _, c := range contents {
			if _, ok := numbers[c]; !ok {
				numbers[c] = len(s.Messages)
				s.Messages = append(s.Messages, Message{c.Type, c.Body})
			}
			s.Nodes[node] = append(s.Nodes[node], numbers[c])
		}
	}
	return s
}

func (s *Script) write(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	return errors.Join(gob.NewEncoder(w).Encode(s), w.Flush(), f.Close())
}

// Wait returns when there are so many streams.
func (p *Process) Wait(streams int) error { return p.command(fmt.Sprint("wait ", streams)) }

// Push pushes it to all streams that are open.
func (p *Process) Push() error { return p.command("push") }
