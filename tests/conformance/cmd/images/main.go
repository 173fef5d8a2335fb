// Command images builds the images that the manifests of the conformance suite name, under these names, from programs
// that are there, and prints their archives. It calls tools/image.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	suite "sigs.k8s.io/gateway-api/conformance"

	"fairlead.dev/tests/conformance"
)

func main() {
	var from conformance.Sources
	flag.StringVar(&from.Bin, "bin", "", "directory with the program echo-basic")
	flag.StringVar(&from.Istio, "istio", "", "directory with Istio's programs server and client")
	flag.StringVar(&from.IstioSource, "istio-source", "", "directory of Istio's module")
	flag.StringVar(&from.CoreDNS, "coredns", "", "directory with the program coredns")
	image := flag.String("image", "", "the program image of tools/image")
	out := flag.String("out", "", "directory for the archives")
	flag.Parse()
	if err := build(from, *image, *out); err != nil {
		fmt.Fprintf(os.Stderr, "images: %v\n", err)
		os.Exit(1)
	}
}

func build(from conformance.Sources, program, out string) error {
	names, err := conformance.Images(&suite.Manifests)
	if err != nil {
		return err
	}
	for _, name := range names {
		args, err := from.Arguments(name)
		if err != nil {
			return err
		}
		archive := filepath.Join(out, strings.NewReplacer("/", "_", ":", "_").Replace(name)+".tar")
		cmd := exec.Command(program, append(args, "-out", archive)...)
		if said, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", name, err, said)
		}
		fmt.Println(archive)
	}
	return nil
}
