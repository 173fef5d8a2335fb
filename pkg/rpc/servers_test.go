package rpc_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The limits of every port are defaults of this package's servers and of ops's, so no service may make a server itself.
func TestServicesMakeNoServersOfTheirOwn(t *testing.T) {
	const services = "../../services"
	var built int
	err := filepath.WalkDir(services, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && strings.HasSuffix(path, "test") { // what tests share
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, ours := range []string{"rpc.ServerConfig{", "ops.New(", ".ServeOps("} {
			built += bytes.Count(source, []byte(ours))
		}
		for _, own := range []string{"grpc.NewServer(", "http.Server{", "http.ListenAndServe", "http.Serve(", "httptest."} {
			if bytes.Contains(source, []byte(own)) {
				t.Errorf("%s: %s makes a server without limits; use pkg/rpc or pkg/ops", path, strings.TrimRight(own, "({"))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if built < 9 {
		t.Errorf("only %d servers were found in %s", built, services)
	}
}
