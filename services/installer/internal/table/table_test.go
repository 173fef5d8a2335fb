package table_test

import (
	"slices"
	"testing"

	"fairlead.dev/services/installer/internal/table"
)

func TestLines(t *testing.T) {
	tab := &table.Table{Header: []string{"NAME", "X", "LAST"}}
	tab.Add("grün", "", "a\nb")
	tab.Add("n", "long cell", "")
	want := []string{
		"NAME   X           LAST",
		"grün   -           a b",
		"n      long cell   -",
	}
	if got := tab.Lines(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
