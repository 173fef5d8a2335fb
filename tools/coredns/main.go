// Command coredns is CoreDNS with the plugins that a cluster under test needs, and forward, log and whoami for the
// conformance suite of the Gateway API.
package main

import (
	"github.com/coredns/coredns/coremain"

	// Plugins register themselves.
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
	_ "github.com/coredns/coredns/plugin/whoami"
)

func main() { coremain.Run() }
