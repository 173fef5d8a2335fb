// Command consul has Consul's agent, and none of its other commands: what `consul troubleshoot` needs
// is in no checksum database.
package main

import (
	"os"

	"github.com/hashicorp/consul/command/agent"
	"github.com/hashicorp/consul/command/cli"
	mcli "github.com/mitchellh/cli"
)

func main() {
	ui := &cli.BasicUI{BasicUi: mcli.BasicUi{Writer: os.Stdout, ErrorWriter: os.Stderr}}
	if len(os.Args) < 2 || os.Args[1] != "agent" {
		ui.Error("usage: consul agent [options]")
		os.Exit(2)
	}
	os.Exit(agent.New(ui).Run(os.Args[2:]))
}
