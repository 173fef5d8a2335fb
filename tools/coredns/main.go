// Command coredns is CoreDNS with the plugins that a cluster under test needs.
package main

import (
	"github.com/coredns/coredns/coremain"

	// Plugins register themselves.
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() { coremain.Run() }
