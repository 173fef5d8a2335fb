package lists_test

import (
	"slices"
	"strconv"
	"testing"

	"fairlead.dev/pkg/lists"
)

func even(n int) bool { return n%2 == 0 }

func TestMap(t *testing.T) {
	if got, want := lists.Map([]int{3, 1, 2}, strconv.Itoa), []string{"3", "1", "2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := lists.Map([]int{}, strconv.Itoa); got != nil {
		t.Errorf("of no items: %q, want nil", got)
	}
}

func TestFilter(t *testing.T) {
	list := []int{1, 2, 3, 4}
	got := lists.Filter(list, even)
	if !slices.Equal(got, []int{2, 4}) {
		t.Errorf("got %d, want 2 and 4", got)
	}
	if got[0] = 9; !slices.Equal(list, []int{1, 2, 3, 4}) {
		t.Errorf("the list has become %d", list)
	}
	if got := lists.Filter([]int{1}, even); got != nil {
		t.Errorf("nothing kept: %d, want nil", got)
	}
}

func TestAll(t *testing.T) {
	for _, c := range []struct {
		list []int
		want bool
	}{{nil, true}, {[]int{2, 4}, true}, {[]int{2, 3}, false}} {
		if got := lists.All(c.list, even); got != c.want {
			t.Errorf("all of %d are even: %t, want %t", c.list, got, c.want)
		}
	}
}
