package bugreport_test

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/services/installer/internal/bugreport"
)

// unpack returns the files of an archive by name.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	gz, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(gz); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Mode != 0o600 {
			t.Errorf("%s has mode %o", h.Name, h.Mode)
		}
		files[h.Name] = string(text)
	}
}

func TestReport(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "report.tar.gz")
	r, err := bugreport.New(path, time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	content := func(text string, err error) func(context.Context) ([]byte, error) {
		return func(context.Context) ([]byte, error) { return []byte(text), err }
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	r.Run(ctx, []bugreport.Task{
		{Name: "a/good.txt", Get: content("hello", nil)},
		{Name: "a/half.txt", Get: content("half", errors.New("then token: abcdefghijk failed"))},
		{Name: "a/none.txt", Get: content("", errors.New("forbidden"))},
		{Name: "../../etc/passwd", Get: content("escaped", nil)},
		{Name: "long.txt", Get: content(strings.Repeat("line\n", bugreport.MaxFile/5+1000)+"last\n", nil)},
		{Name: "panics.txt", Get: func(context.Context) ([]byte, error) { panic("no") }},
		{Name: "hangs.txt", Get: func(context.Context) ([]byte, error) { select {} }},
	})
	r.Run(ctx, []bugreport.Task{{Name: "late.txt", Get: content("late", nil)}})
	if r.Gaps() != 6 {
		t.Errorf("%d gaps", r.Gaps())
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the archive has its name before it is whole")
	}
	if _, _, err := r.Close(); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, path)
	missing := files["report/missing.txt"]
	for _, want := range []string{
		"a/half.txt: then token: [redacted] failed", "a/none.txt: forbidden", "long.txt: its first ", "panics.txt: defect: no",
		"hangs.txt: no answer in time", "late.txt: not begun",
	} {
		if !strings.Contains(missing, want) {
			t.Errorf("missing.txt does not say %q:\n%s", want, missing)
		}
	}
	if files["report/a/good.txt"] != "hello" || files["report/a/half.txt"] != "half" || files["report/etc/passwd"] != "escaped" {
		t.Errorf("files: %q", []string{files["report/a/good.txt"], files["report/a/half.txt"], files["report/etc/passwd"]})
	}
	if long := files["report/long.txt"]; len(long) > bugreport.MaxFile || !strings.HasSuffix(long, "last\n") ||
		!strings.HasPrefix(long, "line\n") {
		t.Errorf("the long file has %d bytes", len(long))
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
}

func TestReportIsBoundedInSize(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.tar.gz")
	r, err := bugreport.New(path, time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	r.Limit(1 << 20)
	block := strings.Repeat("fifteen chars.\n", 300<<10/15)
	var tasks []bugreport.Task
	for range 5 {
		tasks = append(tasks, bugreport.Task{Name: "same.txt", Get: func(context.Context) ([]byte, error) { return []byte(block), nil }})
	}
	r.Run(t.Context(), tasks)
	if r.Gaps() != 2 {
		t.Errorf("%d files were left out", r.Gaps())
	}
	r.Discard()
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 0 {
		t.Errorf("a report that is discarded leaves %v, %v", entries, err)
	}
}

func TestSelection(t *testing.T) {
	pod := bugreport.Pod{Namespace: "shop", Deployment: "web", Name: "web-1", Labels: map[string]string{"app": "web", "example.com/team": "a"},
		Annotations: map[string]string{"n": "v"}}
	for _, tc := range []struct {
		include, exclude []string
		container        string
		want             bool
	}{
		{nil, nil, "app", true},
		{nil, []string{"kube-system,kube-public"}, "app", true},
		{nil, []string{"shop"}, "app", false},
		{nil, []string{"sh*"}, "app", false},
		{[]string{"bank"}, nil, "app", false},
		{[]string{"bank", "shop/w*"}, nil, "app", true},
		{[]string{"shop/api"}, nil, "app", false},
		{[]string{"shop//web-1"}, nil, "app", true},
		{[]string{"shop///app=web"}, nil, "app", true},
		{[]string{"shop///app=web,example.com/team=b"}, nil, "app", false},
		{[]string{"shop///app=web,example.com/team=a/n=v"}, nil, "app", true},
		{[]string{"shop/////istio-proxy"}, nil, "app", false},
		{[]string{"shop/////istio-proxy"}, nil, "istio-proxy", true},
		{[]string{"*"}, []string{"shop/////app"}, "istio-proxy", true},
		{[]string{"*"}, []string{"shop/////app"}, "app", false},
	} {
		s, err := bugreport.ParseSelection(tc.include, tc.exclude)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Takes(pod, tc.container); got != tc.want {
			t.Errorf("--include %q --exclude %q takes %s: %t", tc.include, tc.exclude, tc.container, got)
		}
	}
	for _, bad := range []string{"a/b/c/d", "a/b/c/d=e/f=g/h/i", "[", "a/b/c/d=e/f"} {
		if _, err := bugreport.ParseSelection([]string{bad}, nil); err == nil || !strings.Contains(err.Error(), "NAMESPACE,") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
