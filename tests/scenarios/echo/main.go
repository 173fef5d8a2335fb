// Command echo is the application behind a workload of a scenario. Its one argument is a configuration file
// (internal/echo.Config), to whose addresses it prefers those in $POD_IPS. It prints a line when its ports are open and
// ends with SIGTERM.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"fairlead.dev/tests/scenarios/internal/echo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "echo:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("want one argument, the configuration file")

func run(ctx context.Context) error {
	if len(os.Args) != 2 {
		return errUsage
	}
	config, err := echo.Load(os.Args[1])
	if err != nil {
		return err
	}
	if ips := os.Getenv("POD_IPS"); ips != "" { // of a Pod, which has them only once it runs
		config.IPs = strings.Split(ips, ",")
	}
	return echo.New(config).Run(ctx, func() { fmt.Println("ready") })
}
