package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// patience of Up with the cluster; it takes seconds on an idle machine.
const patience = 3 * time.Minute

// Up starts a cluster and returns when its node is ready and its DNS answers. One that is up is left as it is; what is
// left of one that has ended is removed first. If it fails, or ctx ends, nothing runs, and only the logs are kept.
// images are archives to load, of PauseImage and DNSImage. Clusters of different indexes have different addresses. With
// balancer, Services of type LoadBalancer get addresses.
func Up(ctx context.Context, d Dir, index int, balancer bool, images []string, out io.Writer) error {
	if err := errors.Join(CheckIndex(index), check()); err != nil {
		return err
	}
	unlock, err := d.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := d.PID(); err == nil {
		if _, err := d.Up(); err == nil {
			if is, err := d.Index(); err != nil || is != index {
				return errors.Join(err, fmt.Errorf("a cluster with index %d is up in %s already; `make cluster-down` ends it", is, d))
			}
			fmt.Fprintf(out, "a cluster is up already, KUBECONFIG=%s; `make cluster-down` ends it\n", d.Kubeconfig())
			return nil
		}
		// The Up that waited for it was killed.
		if err := end(d); err != nil {
			return err
		}
	} else if !errors.Is(err, ErrNotUp) {
		return err
	}
	if err := d.clean(); err != nil {
		return fmt.Errorf("remove what is left of a cluster: %w", err)
	}
	began := time.Now()
	if err := startUp(ctx, d, index, balancer, images); err != nil {
		words := tail(d.Log("cluster"), 20)
		err = fmt.Errorf("the cluster did not come up: %w\n%s", err, words)
		return errors.Join(err, end(d), d.clean("log"))
	}
	fmt.Fprintf(out, "the cluster is up after %.1f s, KUBECONFIG=%s (in the network namespace of `make cluster-shell`)\n",
		time.Since(began).Seconds(), d.Kubeconfig())
	return nil
}

// startUp starts the cluster's process 1 and waits until the cluster is ready.
func startUp(ctx context.Context, d Dir, index int, balancer bool, images []string) error {
	args := []string{"init", "--dir", string(d)}
	for _, i := range images {
		i, err := filepath.Abs(i)
		if err != nil {
			return err
		}
		args = append(args, i)
	}
	if err := d.writeIndex(index); err != nil {
		return err
	}
	if balancer {
		if err := os.WriteFile(d.balancerFile(), nil, 0o644); err != nil {
			return err
		}
	}
	return start(ctx, d, args)
}

// start starts a process 1 by a command of this program, with files that it inherits, and waits until its node is
// ready.
func start(ctx context.Context, d Dir, args []string, files ...*os.File) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.Path("log"), 0o755); err != nil {
		return err
	}
	log, err := os.Create(d.Log("cluster"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(self, args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir, cmd.ExtraFiles = log, log, "/", files
	// A session of its own: Ctrl-C is for Up alone.
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true, Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS,
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("new namespaces: %w", err)
	}
	ended, how := make(chan struct{}), error(nil)
	go func() {
		how = cmd.Wait()
		close(ended)
	}()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	failed := func() error {
		late := time.After(patience)
		for {
			select {
			case <-ended:
				return fmt.Errorf("it ended: %w", how)
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-late:
				return fmt.Errorf("it is not ready after %s", patience)
			case <-tick.C:
				if _, err := os.Stat(d.readyFile()); err == nil {
					return nil
				}
			}
		}
	}()
	if failed != nil {
		_ = cmd.Process.Kill() // it may have ended
		<-ended
	}
	return failed
}

// Down ends a cluster and removes all that it leaves, also what is left of one that has ended by itself.
func Down(d Dir, out io.Writer) error {
	if err := checkRoot(); err != nil {
		return err
	}
	unlock, err := d.lock()
	if err != nil {
		return err
	}
	defer unlock()
	pid, notUp := d.PID()
	if notUp == nil {
		if err := errors.Join(unlinkAll(pid), end(d)); err != nil {
			return err
		}
	}
	if err := errors.Join(d.clean(), os.Remove(string(d))); err != nil {
		return fmt.Errorf("remove what the cluster leaves: %w", err)
	}
	if notUp != nil {
		fmt.Fprintf(out, "%v; nothing of one is left\n", notUp)
		return nil
	}
	fmt.Fprintf(out, "the cluster in %s has ended, and nothing of it is left\n", d)
	return nil
}

// end kills process 1, and everything with it, and waits until it is gone.
func end(d Dir) error {
	pid, err := d.PID()
	if errors.Is(err, ErrNotUp) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("end process %d: %w", pid, err)
	}
	ended, err := waitEnd(pid, 30*time.Second)
	if err == nil && !ended {
		err = errors.New("it goes on")
	}
	if err != nil {
		return fmt.Errorf("end process %d, the cluster's process 1: %w", pid, err)
	}
	return nil
}

// tail returns the last lines of a log.
func tail(path string, lines int) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
