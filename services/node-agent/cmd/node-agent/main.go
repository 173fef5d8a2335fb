// Command node-agent runs beside a workload: it keeps the workload's identity,
// connects Envoy to the control plane and runs Envoy.
package main

import (
	"context"
	"os"
	"runtime/debug"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/node-agent/internal/command"
)

func main() {
	// There is one agent per workload: memory matters more than the little CPU
	// the collector takes. GOGC in the environment wins.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	process.Main("node-agent", func(ctx context.Context) error {
		return command.Root(os.Stdout, os.Stderr).ExecuteContext(ctx)
	})
}
