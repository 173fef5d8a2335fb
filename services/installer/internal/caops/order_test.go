package caops

import (
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
	"fairlead.dev/proto/fairlead/caapi"
)

func TestFlagsThatDoNotGoTogether(t *testing.T) {
	for want, f := range map[string]Flags{
		"--pause and --abort exclude each other":                  {Pause: true, Abort: true},
		"--resume and --rollback and --accept exclude each other": {Resume: true, Rollback: true, Accept: []string{"shop/web"}},
		"--abort and --to exclude each other":                     {Swap: true, Abort: true, To: "f"},
		"--pause and --reason exclude each other":                 {Pause: true, Reason: "r"},
		"--accept and --compromised exclude each other":           {Accept: []string{"shop/web"}, Compromised: true},
		"--wait with --pause":                                     {Pause: true, Wait: true},
		"with --to FILE; or steer":                                {Swap: true},
		"--reason is that of a swap that begins":                  {Swap: true, Compromised: true, Reason: "r"},
		"--reason has 257 bytes; 256 are the most":                {Reason: strings.Repeat("r", 257)},
		"the name of a holder is empty":                           {Accept: []string{"shop/web", ""}},
	} {
		if err := f.Check(); process.ExitCode(err) != process.ExitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", f, err, want)
		}
	}
	for _, f := range []Flags{
		{}, {Compromised: true, Reason: "r", Wait: true}, {Swap: true, To: "f", Compromised: true, Reason: strings.Repeat("r", 256)},
		{Swap: true, Compromised: true}, {Swap: true, Resume: true, Wait: true}, {Accept: []string{"a", "b"}}, {Rollback: true, Wait: true},
	} {
		if err := f.Check(); err != nil {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

func TestOrder(t *testing.T) {
	for name, tc := range map[string]struct {
		flags  Flags
		status *caapi.Status
		want   []caapi.Command
		// question is a part of what is asked; empty if nothing is.
		question string
		err      string
	}{
		"rotate": {Flags{Reason: "r"}, idle(), []caapi.Command{{Action: caapi.Rotate, Reason: "r"}},
			"The signer self-signed (intermediate) gets new keys and a new root; 103 holders", ""},
		"rotate, compromised": {Flags{Compromised: true}, idle(),
			[]caapi.Command{{Action: caapi.Rotate, Compromised: true}}, "no longer trusted", ""},
		"rotate during one": {Flags{}, gate(1), nil, "", "under way since 2026-03-01T11:55:00Z (step gate)"},
		"swap": {Flags{Swap: true, To: "f.yaml", Compromised: true}, idle(),
			[]caapi.Command{{Action: caapi.Swap, File: "content", Compromised: true}}, "f.yaml takes the place of self-signed (intermediate)", ""},
		"swap during one":        {Flags{Swap: true, To: "f", Compromised: true}, gate(1), nil, "", "is under way"},
		"compromised during one": {Flags{Compromised: true}, gate(1), []caapi.Command{{Action: caapi.Compromised}}, "An hour after", ""},
		"swap: compromised during one": {Flags{Swap: true, Compromised: true}, gate(1),
			[]caapi.Command{{Action: caapi.Compromised}}, "An hour after", ""},
		"swap: compromised, idle":   {Flags{Swap: true, Compromised: true}, idle(), nil, "", "--to FILE --compromised"},
		"compromised with a reason": {Flags{Compromised: true, Reason: "r"}, gate(1), nil, "", "leave it out"},
		"pause":                     {Flags{Pause: true}, gate(1), []caapi.Command{{Action: caapi.Pause}}, "", ""},
		"resume":                    {Flags{Resume: true}, gate(1), []caapi.Command{{Action: caapi.Resume}}, "", ""},
		"abort":                     {Flags{Abort: true}, gate(1), []caapi.Command{{Action: caapi.Abort}}, "", ""},
		"rollback, the ca judges":   {Flags{Rollback: true}, idle(), []caapi.Command{{Action: caapi.Rollback}}, "", ""},
		"accept": {Flags{Accept: []string{"shop/web-2", "shop/web-0"}}, gate(3),
			[]caapi.Command{{Action: caapi.Accept, Holder: "shop/web-2"}, {Action: caapi.Accept, Holder: "shop/web-0"}},
			"without shop/web-2, shop/web-0", ""},
		"accept a mistake": {Flags{Accept: []string{"shop/web0"}}, gate(2), nil, "", `does not wait for "shop/web0"; did you mean`},
		"accept one that is not listed": {Flags{Accept: []string{"shop/far"}}, gate(101),
			[]caapi.Command{{Action: caapi.Accept, Holder: "shop/far"}}, "without shop/far", ""},
		"accept, idle": {Flags{Accept: []string{"shop/web-0"}}, idle(), nil, "", "no rotation is under way"},
	} {
		t.Run(name, func(t *testing.T) {
			file := ""
			if tc.flags.To != "" {
				file = "content"
			}
			got, err := tc.flags.Order(tc.status, file)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%v, want %q", err, tc.err)
				}
				return
			}
			if err != nil || len(got.Commands) != len(tc.want) {
				t.Fatalf("%+v, %v", got, err)
			}
			for i := range tc.want {
				if got.Commands[i] != tc.want[i] {
					t.Errorf("%+v, want %+v", got.Commands[i], tc.want[i])
				}
			}
			if (got.Question != "") != (tc.question != "") || !strings.Contains(got.Question, tc.question) {
				t.Errorf("question %q, want %q", got.Question, tc.question)
			}
			if got.Done(tc.status) == "" {
				t.Error("nothing is said about the result")
			}
		})
	}
}
