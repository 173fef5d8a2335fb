// Command cluster runs a Kubernetes cluster for tests on this machine; the Makefile's targets cluster-… call it. It
// needs root, and the programs of Kubernetes, etcd and CoreDNS in the directories that KUBE_BIN lists.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"fairlead.dev/tests/cluster/internal/balancer"
	"fairlead.dev/tests/cluster/internal/harness"
	"fairlead.dev/tests/cluster/internal/policies"
)

const usage = `usage: cluster needs|up|down|join|leave|load|tag|exec|link|unlink [--dir DIR] [ARGUMENT...]
  needs            say what this machine lacks for a cluster
  up ARCHIVE...    start a cluster; the archives hold the images of pause and CoreDNS. With another --index it has
                   other addresses, with --balancer Services of type LoadBalancer get some, too
  down             end it, and remove all that it leaves
  join             add a second node, node2, with the images of the first
  leave            remove it
  load ARCHIVE...  import images
  tag OLD NEW      give the images fairlead/NAME:OLD the tag NEW, too
  exec COMMAND...  run a command in the cluster's network, with KUBECONFIG set
  link DIR         join it and the cluster in another directory, of another index: their nodes reach each other, with
                   --pods their Pods, too
  unlink DIR       end that
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	interrupted := ctx.Err() != nil
	stop()
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "cluster: %v\n", err)
	switch {
	case errors.Is(err, errUsage):
		os.Exit(2)
	case interrupted:
		os.Exit(130)
	}
	os.Exit(1)
}

var errUsage = errors.New("wrong usage")

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("%w: no command\n%s", errUsage, usage)
	}
	flags := flag.NewFlagSet("cluster "+args[0], flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage); flags.PrintDefaults() }
	path := flags.String("dir", ".run/cluster", "the cluster's directory; clusters with different ones do not meet")
	index := flags.Int("index", environmentIndex(), "of `up`: the cluster's index, 0 to 15; CLUSTER_INDEX of the environment if not given")
	balanced := flags.Bool("balancer", false, "of `up`: Services of type LoadBalancer get addresses of the node's network")
	pods := flags.Bool("pods", false, "of `link`: Pods reach each other, too, as in one network")
	if err := flags.Parse(args[1:]); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	d, err := harness.NewDir(*path)
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	rest := flags.Args()
	switch args[0] {
	case "needs":
		return harness.CheckMachine()
	case "up":
		return harness.Up(ctx, d, *index, *balanced, rest, os.Stdout)
	case "down":
		return harness.Down(d, os.Stdout)
	case "join":
		return harness.Join(ctx, d, os.Stdout)
	case "leave":
		return harness.Leave(ctx, d, os.Stdout)
	case "load":
		return harness.Load(ctx, d, rest, os.Stdout)
	case "tag":
		if len(rest) != 2 {
			return fmt.Errorf("%w: tag needs two tags\n%s", errUsage, usage)
		}
		return harness.Tag(ctx, d, rest[0], rest[1])
	case "exec":
		if len(rest) == 0 {
			return fmt.Errorf("%w: exec needs a command\n%s", errUsage, usage)
		}
		return harness.Exec(d, rest)
	case "link", "unlink":
		if len(rest) != 1 {
			return fmt.Errorf("%w: %s needs the directory of the other cluster\n%s", errUsage, args[0], usage)
		}
		other, err := harness.NewDir(rest[0])
		if err != nil {
			return fmt.Errorf("%w: %w", errUsage, err)
		}
		if args[0] == "unlink" {
			return harness.Unlink(d, other)
		}
		return harness.Link(d, other, *pods, os.Stdout)
	case "init": // the process that `up` starts
		return harness.Init(d, rest)
	case "node": // the process that `init` starts
		return harness.Node(ctx, d, rest)
	case "join-inside": // the process that `join` starts
		return harness.JoinInside(ctx, d)
	case "init-second": // the process that `join-inside` starts
		return harness.InitSecond(d)
	case "policies": // the process that `node` and `second` start
		return policies.Enforce(ctx, d.Kubeconfig())
	case "balancer": // the process that `node` starts
		pool, err := d.Balancers()
		if err != nil {
			return err
		}
		return balancer.Balance(ctx, d.Kubeconfig(), pool)
	case "second": // the process that `init-second` starts
		return harness.Second(ctx, d)
	}
	return fmt.Errorf("%w: unknown command %q\n%s", errUsage, args[0], usage)
}

// environmentIndex is CLUSTER_INDEX; what is no number is -1, which is refused.
func environmentIndex() int {
	text := os.Getenv("CLUSTER_INDEX")
	if text == "" {
		return 0
	}
	index, err := strconv.Atoi(text)
	if err != nil {
		return -1
	}
	return index
}
