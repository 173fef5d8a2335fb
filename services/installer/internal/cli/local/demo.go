package local

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/local/demo"
	"fairlead.dev/services/installer/internal/local/ports"
)

func newDemo(env command.Env) *cobra.Command {
	var mesh, change, broken, binDir, envoy, loopback string
	var keep bool
	requests := 300
	cmd := &cobra.Command{
		Use:   "demo --mesh FILE",
		Short: "Show what Fairlead promises on a mesh of its own; exit code 1 if anything differs",
		Args:  command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if mesh == "" {
				return process.Usagef("--mesh is required, like samples/bookinfo/mesh.yaml")
			}
			dir, err := os.MkdirTemp("", "fairlead-demo-")
			if err != nil {
				return err
			}
			change = cmp.Or(change, filepath.Join(filepath.Dir(mesh), "reviews-v3.yaml"))
			broken = cmp.Or(broken, filepath.Join(filepath.Dir(mesh), "broken.yaml"))
			runDir, ready := filepath.Join(dir, "run"), filepath.Join(dir, "ready")
			f := upFlags{
				files: []string{mesh}, xdsServers: 2, loopbackRange: loopback, binDir: binDir, envoy: envoy,
				logLevel: "info", fileGrace: defaultFileGrace, drain: 5 * time.Second, readyFile: ready, readyTimeout: time.Minute,
			}
			err = demo.Run(cmd.Context(), demo.Config{
				Up: func(ctx context.Context, out io.Writer) error {
					e := env
					e.Out = out
					return up(ctx, e, runDir, f)
				},
				RunDir: runDir, ReadyFile: ready, Change: change, Broken: broken,
				Requests: requests, Out: cmd.OutOrStdout(),
			})
			if !keep && (err == nil || errors.Is(err, demo.ErrInterrupted)) {
				err = errors.Join(err, os.RemoveAll(dir))
			}
			return err
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&mesh, "mesh", "", "mesh file of the book shop")
	fs.StringVar(&change, "change", "", "object that shifts reviews to v3 (default: reviews-v3.yaml beside the mesh file)")
	fs.StringVar(&broken, "broken", "", "object that must be refused (default: broken.yaml beside the mesh file)")
	fs.IntVar(&requests, "requests", requests, "how many requests are sent at first")
	fs.StringVar(&binDir, "bin-dir", "", "directory of the programs (default: that of fairlead)")
	fs.StringVar(&envoy, "envoy", "", "Envoy binary (default: found as `fairlead up` does)")
	fs.StringVar(&loopback, "loopback-range", ports.Auto, "loopback addresses to use")
	fs.BoolVar(&keep, "keep", false, "keep the run directory, logs included, also after a success or Ctrl-C")
	return cmd
}
