package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/local/rundir"
)

func newDown(flags *meshflags.Flags) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop the mesh of the run directory",
		Args:  command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return down(cmd.Context(), flags.RunDir(), timeout, cmd.OutOrStdout())
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait for the end")
	return cmd
}

// pollInterval is how often a command looks whether another process has ended or is ready.
const pollInterval = 50 * time.Millisecond

func down(ctx context.Context, runDir string, timeout time.Duration, out io.Writer) error {
	dir, err := rundir.Abs(runDir)
	if err != nil {
		return err
	}
	l := rundir.Layout{Dir: dir}
	pid, err := rundir.Holder(l)
	if err != nil {
		return err
	}
	if pid == 0 {
		fmt.Fprintf(out, "no mesh runs in %s\n", dir)
		return nil
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stop pid %d: %w", pid, err)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		now, err := rundir.Holder(l)
		if err != nil {
			return err
		}
		if now != pid {
			fmt.Fprintf(out, "stopped the mesh of %s (pid %d)\n", dir, pid)
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("pid %d still runs after %s; see %s, or kill it: its children end with it", pid, timeout, l.Log("fairlead"))
		case <-time.After(pollInterval):
		}
	}
}

// detach starts `fairlead up` as a session leader in the background, and returns when the mesh is ready.
func detach(ctx context.Context, env command.Env, runDir string, f upFlags, out io.Writer) error {
	tmp, err := os.MkdirTemp("", "fairlead-up-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	output, err := os.Create(filepath.Join(tmp, "output"))
	if err != nil {
		return err
	}
	defer output.Close()
	if f.readyFile == "" {
		f.readyFile = filepath.Join(tmp, "ready")
	}
	f.readyTimeout = cmp.Or(f.readyTimeout, 2*time.Minute)
	if err := os.Remove(f.readyFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("ready file: %w", err)
	}
	cmd := exec.Command(env.Executable, f.args(runDir)...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start in the background: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			return detachFailed(err, output.Name())
		case <-ctx.Done():
			_ = cmd.Process.Signal(syscall.SIGTERM)
			return errors.Join(ctx.Err(), <-ended)
		case <-time.After(pollInterval):
		}
		if _, err := os.Stat(f.readyFile); err == nil {
			break
		}
	}
	text, err := os.ReadFile(output.Name())
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%spid %d runs in the background; stop it with `fairlead down --run-dir %s`\n", text, cmd.Process.Pid, runDir)
	return nil
}

// detachFailed is the error of a background process that has ended: its output and its exit code.
func detachFailed(err error, output string) error {
	text, readErr := os.ReadFile(output)
	if readErr != nil {
		return errors.Join(err, readErr)
	}
	code := process.ExitFailure
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		code = exit.ExitCode()
	}
	return process.WithExitCode(fmt.Errorf("the mesh did not come up:\n%s", text), code)
}

// args returns the flags as arguments for the background process.
func (f upFlags) args(runDir string) []string {
	list := []string{
		"up", "--run-dir", runDir,
		"--xds-servers", fmt.Sprint(f.xdsServers), "--loopback-range", f.loopbackRange,
		"--log-level", f.logLevel, "--drain", f.drain.String(), "--file-grace-period", f.fileGrace.String(),
		"--ready-file", f.readyFile, "--ready-timeout", f.readyTimeout.String(),
	}
	for flag, value := range map[string]string{"--bin-dir": f.binDir, "--envoy": f.envoy, "--trust-domain": f.trustDomain} {
		if value != "" {
			list = append(list, flag, value)
		}
	}
	for _, file := range f.files {
		list = append(list, "-f", file)
	}
	return list
}
