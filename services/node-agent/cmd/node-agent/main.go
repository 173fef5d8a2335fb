// Command node-agent runs beside a workload: it keeps the workload's identity,
// connects Envoy to the control plane and runs Envoy.
package main

import (
	"os"

	"fairlead.dev/pkg/footprint"
	"fairlead.dev/pkg/service"
	"fairlead.dev/services/node-agent/internal/command"
)

func main() {
	footprint.CollectSeldom() // package app runs a Keeper
	service.Main(command.Root(os.Stdout, os.Stderr))
}
