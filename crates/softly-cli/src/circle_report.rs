//! The toy study's table and page.

use softly::circle_study::StudyTable;

/// The means over seeds as a text table.
pub fn text_table(table: &StudyTable) -> String {
    let mut lines = vec![format!(
        "{} study, scale {}: mean over seeds of {} estimates of {} samples each, in units of 1e-3",
        table.study, table.scale, table.sets, table.points
    )];
    lines.push(format!(
        "{:10} {:14} {:>5} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "data", "method", "seeds", "to curve", "median", "p99", "radial W1", "angular W1", "W1"
    ));
    for floor in &table.floors {
        let m = &floor.metrics;
        let cells = [m.curve_mean, m.curve_median, m.curve_p99, m.radial_w1, m.angular_w1, m.w1];
        let cells: String = cells.iter().map(|s| format!(" {:>10.3}", 1e3 * s.mean)).collect();
        lines.push(format!("{:10} {:14} {:>5}{cells}", floor.data, "(true points)", ""));
        for mean in table.means.iter().filter(|mean| mean.data == floor.data) {
            let m = &mean.metrics;
            let cells = [m.curve_mean, m.curve_median, m.curve_p99, m.radial_w1, m.angular_w1, m.w1];
            let cells: String = cells.iter().map(|s| format!(" {:>10.3}", 1e3 * s.mean)).collect();
            lines.push(format!("{:10} {:14} {:>5}{cells}", mean.data, mean.method, mean.seeds));
        }
    }
    lines.join("\n")
}
