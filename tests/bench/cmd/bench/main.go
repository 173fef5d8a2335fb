// Command bench measures xds-server's real binary against a floor, row by row, and prints the table. See
// docs/performance.md.
//
// Exit code 0: every goal that is claimed is reached. 1: one is missed, a row is not as -against says, or the benchmark
// could not run. 2: wrong flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"fairlead.dev/tests/bench/internal/floor"
	"fairlead.dev/tests/bench/internal/suite"
)

func main() {
	// The program starts itself again to be the floor.
	if len(os.Args) == 5 && os.Args[1] == floor.Role {
		exit(floor.Serve(os.Stdin, os.Stdout, floor.Files{Cert: os.Args[2], Key: os.Args[3], Roots: os.Args[4]}))
	}
	var o suite.Options
	var rows string
	flag.StringVar(&o.BinDir, "bin", "bin", "directory of the binaries: ca, config-watcher, xds-server")
	flag.BoolVar(&o.Full, "full", false,
		"the long form: more repetitions, 1,000 sidecars in every row that is about them, a minute of mixed changes")
	flag.StringVar(&rows, "rows", "", "only these groups of rows, divided by commas: "+strings.Join(suite.Groups(), ", "))
	flag.StringVar(&o.Definitions, "crds", "services/installer/manifests/charts/base/files/crds",
		"directory of the CustomResourceDefinitions, for the groups kube and gateway")
	flag.StringVar(&o.Envoy, "envoy", ".tools/envoy", "the Envoy binary, for the group gateway")
	flag.StringVar(&o.Page, "page", "", "Markdown file whose table is replaced, between the markers")
	flag.StringVar(&o.Against, "against", "", "Markdown file whose table the rows are compared with; exit 1 if one has moved beyond noise")
	flag.StringVar(&o.Keep, "keep", "", "directory for logs and profiles; empty: one that is removed at the end")
	flag.BoolVar(&o.Profile, "profile", false, "keep CPU profiles of xds-server, one for each row, in -keep")
	flag.BoolVar(&o.Realtime, "realtime", false,
		"run before all other programs of the machine, which then disturb nothing; needs CAP_SYS_NICE")
	flag.Parse()
	if flag.NArg() > 0 || o.Profile && o.Keep == "" {
		fmt.Fprintln(os.Stderr, "bench: takes no arguments; -profile needs -keep")
		os.Exit(2)
	}
	if rows != "" {
		o.Rows = strings.Split(rows, ",")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := suite.Run(ctx, o, os.Stdout)
	stop()
	exit(err)
}

func exit(err error) {
	switch {
	case errors.Is(err, suite.ErrMissed), errors.Is(err, suite.ErrMoved):
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench: could not run:", err)
		os.Exit(1)
	}
}
