package local_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/runstate"
	"fairlead.dev/services/installer/internal/cli"
	"fairlead.dev/services/installer/internal/cli/clitest"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/local/rundir"
)

// loggedMesh is the run directory of a mesh that has ended.
func loggedMesh(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	l := rundir.Layout{Dir: dir}
	if err := os.Mkdir(l.Logs(), 0o700); err != nil {
		t.Fatal(err)
	}
	log := func(name, content string) runstate.Process {
		testkit.WriteFile(t, l.Log(strings.ReplaceAll(name, "/", ".")), []byte(content))
		return runstate.Process{Name: name, Log: l.Log(strings.ReplaceAll(name, "/", "."))}
	}
	line := func(second, level, message string) string {
		return `{"time":"2026-01-02T03:04:` + second + `Z","level":"` + level + `","msg":"` + message + "\"}\n"
	}
	log("fairlead", line("00", "INFO", "up"))
	pod := func(name, namespace, app, second string) runstate.Pod {
		return runstate.Pod{
			Name: name + "-0", Namespace: namespace, Workload: name, Kind: "sidecar", Labels: map[string]string{"app": app},
			Containers: []runstate.Container{{Process: log(name+"-0."+namespace+"/"+name, "request to "+name+"\n"), Container: name}},
			Agent:      &runstate.Agent{Process: log(name+"-0."+namespace+"/istio-proxy", line(second, "WARN", "proxy of "+name))},
		}
	}
	s := runstate.State{RunDir: dir, PID: 1, Birth: "ended",
		Pods: []runstate.Pod{pod("web", "shop", "web", "04"), pod("cart", "test", "cart", "03")}}
	for i, second := range []string{"05", "01"} {
		name := []string{"xds-server-0", "xds-server-1"}[i]
		s.Services = append(s.Services, runstate.Service{Process: log(name, line(second, "ERROR", name+" fails")+line(second, "DEBUG", "more")),
			Program: "xds-server"})
	}
	if err := rundir.Write(l, &s); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestLogs(t *testing.T) {
	env := map[string]string{"FAIRLEAD_RUN_DIR": loggedMesh(t)}
	for args, want := range map[string]string{
		"fairlead":                   "up",
		"xds-server-0 --level info":  "xds-server-0 fails",
		"xds-server --level error":   "xds-server-1 fails|xds-server-0 fails",
		"web":                        "request to web|proxy of web",
		"web-0.shop/web":             "request to web",
		"deploy/cart -c istio-proxy": "proxy of cart",
		"-c istio-proxy":             "proxy of cart|proxy of web",
		"-n shop":                    "request to web|proxy of web",
		"-l app=cart -c cart":        "request to cart",
		"web cart xds-server-1":      "request to web|request to cart|xds-server-1 fails|more|proxy of cart|proxy of web",
		"xds-server --tail 1":        "more|more",
		"fairlead --since 1h":        "",
		"": "request to web|request to cart|up|xds-server-1 fails|more|proxy of cart|proxy of web|xds-server-0 " +
			"fails|more",
		"--level error --prefix=false": "xds-server-1 fails|xds-server-0 fails",
	} {
		t.Run(args, func(t *testing.T) {
			out, diagnostics, _, err := clitest.Split(env, append([]string{"logs"}, strings.Fields(args)...)...)
			var got []string
			for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
				if _, message, ok := strings.Cut(line, `"msg":"`); ok {
					line = strings.TrimSuffix(message, `"}`)
				} else if i := strings.Index(line, "request"); i >= 0 {
					line = line[i:]
				}
				got = append(got, line)
			}
			if err != nil || strings.Join(got, "|") != want || (diagnostics == "") != (want != "") {
				t.Errorf("%q, %q, %v; want %q", got, diagnostics, err, want)
			}
		})
	}
	if out, _, _, err := clitest.Split(env, "logs", "xds-server", "--level", "error"); err != nil ||
		!strings.HasPrefix(out, "xds-server-1  {") {
		t.Errorf("several logs without their names: %q, %v", out, err)
	}
	if out, _, _, err := clitest.Split(env, "logs", "xds-server-0", "--prefix"); err != nil || !strings.HasPrefix(out, "xds-server-0  {") {
		t.Errorf("--prefix: %q, %v", out, err)
	}
	for args, says := range map[string]string{
		"xds-servre":         `did you mean "xds-server"?`,
		"wbe-0":              `did you mean "web-0"?`,
		"banana":             "there are fairlead, xds-server, xds-server-0, xds-server-1, cart-0.test, web-0.shop",
		"-n shpo":            `did you mean "shop"?`,
		"-c istio-prox":      `did you mean "istio-proxy"?`,
		"-l app=none":        "no process has all",
		"--run-dir /nowhere": "fairlead up --run-dir",
	} {
		if _, _, code, err := clitest.Split(env, append([]string{"logs"}, strings.Fields(args)...)...); code != process.ExitFailure ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%s: %d, %v", args, code, err)
		}
	}
}

func TestLogsAreFollowed(t *testing.T) {
	dir := loggedMesh(t)
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		defer w.Close()
		done <- cli.Run(ctx, command.Env{Out: w, Err: io.Discard, Getenv: func(string) string { return "" }},
			[]string{"logs", "fairlead", "-f", "--tail", "1", "--run-dir", dir})
	}()
	lines := make(chan string)
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := r.Read(buffer)
			if err != nil {
				close(lines)
				return
			}
			lines <- string(buffer[:n])
		}
	}()
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-lines:
			if !strings.Contains(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
		case <-time.After(testkit.Patience):
			t.Fatalf("no line with %q", want)
		}
	}
	expect(`"msg":"up"`)
	f, err := os.OpenFile(filepath.Join(dir, "logs", "fairlead.log"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("new\n"); err != nil {
		t.Fatal(err)
	}
	expect("new\n")
	cancel()
	for range lines {
		t.Error("a line after the end")
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
